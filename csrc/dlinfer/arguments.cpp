#include "arguments.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dipu/vendor.h>
#include <dlfcn.h>
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>

namespace py = pybind11;

namespace dlinfer {
namespace {

const dipuVendorTable* found_chip() {
    py::gil_scoped_acquire held;
    const auto described = py::module_::import("torch_dipu._C").attr("describe_vendor")(py::list());
    const auto path = described["library"].cast<std::string>();
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    TORCH_CHECK(library, "dlinfer: the library of the device, ", path, ", is not loaded: ", dlerror());
    auto* entry = reinterpret_cast<dipuGetVendorTable_t>(dlsym(library, DIPU_VENDOR_ENTRY));
    TORCH_CHECK(entry, "dlinfer: the library of the device, ", path, ", has no ", DIPU_VENDOR_ENTRY);
    return entry();
}

/// The function table of the chip behind `dipu`. The device has loaded its library already: this finds it and loads nothing.
const dipuVendorTable& chip() {
    // No static of a function: its lock and the GIL might be taken in both orders.
    static std::atomic<const dipuVendorTable*> table{nullptr};
    if (const auto* known = table.load(std::memory_order_acquire)) return *known;
    const auto* found = found_chip();
    table.store(found, std::memory_order_release);
    return *found;
}

bool has_alias(const dipuVendorTable& table, uint64_t features) {
    // A library of an earlier version ends before this entry.
    return (features & DIPU_FEATURE_ALIAS) && table.size >= offsetof(dipuVendorTable, host_alias) + sizeof(table.host_alias) && table.host_alias;
}

}  // namespace

void* host_address(const at::Tensor& tensor) {
    const auto device = tensor.device();
    TORCH_CHECK(device.type() == c10::kPrivateUse1, "dlinfer's kernels for the CPU were given a tensor on ", device);
    const auto& table = chip();
    uint64_t features = 0;
    // Asked each time: a program may switch both while it runs.
    const bool known = table.features(&features) == DIPU_SUCCESS;
    TORCH_CHECK(known && has_alias(table, features), "dlinfer: the CPU cannot reach the memory of ", device,
                " any more; call dlinfer.vendors.use(None) after changing what the device can do");
    if (features & DIPU_FEATURE_ASYNCHRONOUS) {
        // The queue of the current stream has in it whatever this stream must wait for on others.
        const c10::impl::VirtualGuardImpl guard(device.type());
        guard.synchronizeStream(guard.getStream(device));
    }
    const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (!storage->data()) return nullptr;
    return static_cast<char*>(table.host_alias(storage->data())) + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace dlinfer
