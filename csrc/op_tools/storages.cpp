// The memory of tensors without an object of Python for it: such an object shares in the storage, and autograd adds gradients
// in place only where nobody shares.
#include <torch/csrc/autograd/python_variable.h>

#include "python_call.h"

namespace op_tools {
namespace {

// Null where a tensor has no memory of its own: sparse, or one that stands for others.
c10::StorageImpl* storage_of(const py::handle& object) {
    if (!THPVariable_Check(object.ptr())) throw py::type_error("expected a torch.Tensor");
    const auto& tensor = THPVariable_Unpack(object.ptr());
    return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

class WeakStorage {
   public:
    explicit WeakStorage(const py::handle& tensor)
        : storage_(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(tensor))) {}
    bool expired() const { return storage_.expired(); }

   private:
    c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
};

}  // namespace

void bind_storages(py::module_& module) {
    module.def("storage_id", [](const py::handle& tensor) { return reinterpret_cast<uintptr_t>(storage_of(tensor)); },
               "The same for tensors that show the same memory; 0 for a tensor without.");
    module.def("storage_nbytes",
               [](const py::handle& tensor) {
                   const auto* storage = storage_of(tensor);
                   return storage == nullptr ? size_t{0} : storage->nbytes();
               },
               "The bytes of the memory that a tensor is part of.");
    py::class_<WeakStorage>(module, "WeakStorage", "The memory of a tensor, not held.")
        .def(py::init<const py::handle&>())
        .def("expired", &WeakStorage::expired);
}

}  // namespace op_tools
