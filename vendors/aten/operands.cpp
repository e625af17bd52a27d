// From handles to tensors for kernels. The operands of one call that share memory share a storage, as the caller's do: ATen compares
// storages to refuse operands that overlap in part.
#include <ATen/EmptyTensor.h>

#include <array>

#include "kernel.h"

namespace dipu_vendor {
namespace {

struct Geometry {
    char* begin;
    c10::IntArrayRef sizes, strides;
    caffe2::TypeMeta dtype;
    size_t nbytes;
    c10::Device device;

    char* end() const { return begin + nbytes; }
};

Geometry geometry(diopiConstTensorHandle_t handle) {
    TORCH_CHECK(handle, "a tensor is NULL that must be given");
    const void* data = nullptr;
    diopiSize_t size{}, stride{};
    diopiDtype_t dtype{};
    diopiGetTensorDataConst(handle, &data);
    diopiGetTensorShape(handle, &size);
    diopiGetTensorStride(handle, &stride);
    diopiGetTensorDtype(handle, &dtype);
    Geometry g{static_cast<char*>(kernel_address(data)), {size.data, static_cast<size_t>(size.len)}, {stride.data, static_cast<size_t>(stride.len)},
               c10::scalarTypeToTypeMeta(scalar_type(dtype)), 0, kernel_device(handle)};
    g.nbytes = at::detail::computeStorageNbytes(g.sizes, g.strides, g.dtype.itemsize());
    return g;
}

using TensorPointer = c10::intrusive_ptr<c10::TensorImpl>;

c10::Storage storage_over(void* data, size_t nbytes, c10::Device device) {
    return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(data, device), nullptr, false);
}

// The operands that a thread has read for the call it is in. Each is compared with the first sixteen: in a call with long lists the
// outputs are among them. Tensors are used again when the kernel has finished with them, which saves two allocations each.
class CallTensors {
   public:
    void clear() { count_ = 0; }

    at::Tensor add(diopiConstTensorHandle_t handle, bool reuse) {
        const Geometry g = geometry(handle);
        bool shares = false;
        for (size_t i = 0; i < count_; ++i) {
            const Operand& other = seen_[i];
            if (g.begin >= other.end || other.begin >= g.end()) continue;
            if (is(other, g)) return at::Tensor(other.tensor);
            shares = true;
        }
        Operand& operand = count_ < seen_.size() ? seen_[count_] : beyond_;
        if (!reuse || !take_again(operand.tensor, g)) operand.tensor = make(g);
        operand.begin = g.begin;
        operand.end = g.end();
        if (count_ < seen_.size()) ++count_;
        if (shares) share(handle, operand);
        return at::Tensor(operand.tensor);
    }

   private:
    struct Operand {
        char *begin, *end;
        TensorPointer tensor;
    };

    // In place: one tensor, as on the CPU.
    static bool is(const Operand& operand, const Geometry& g) {
        return operand.begin == g.begin && operand.tensor->dtype() == g.dtype && operand.tensor->sizes() == g.sizes &&
               operand.tensor->strides() == g.strides;
    }

    static TensorPointer make(const Geometry& g) {
        auto made = c10::make_intrusive<c10::TensorImpl>(storage_over(g.begin, g.nbytes, g.device), c10::DispatchKeySet(kKernelKey), g.dtype);
        made->set_sizes_and_strides(g.sizes, g.strides, 0);
        return made;
    }

    static bool take_again(const TensorPointer& tensor, const Geometry& g) {
        if (!tensor || tensor.use_count() != 1 || tensor->dtype() != g.dtype || tensor->device() != g.device ||
            tensor->unsafe_storage().use_count() != 1) return false;
        auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(c10::DataPtr(g.begin, g.device));
        storage->unsafe_set_nbytes(g.nbytes);
        tensor->set_sizes_and_strides(g.sizes, g.strides, 0);
        return true;
    }

    // One storage for `operand` and all others that lie in its handle's.
    void share(diopiConstTensorHandle_t handle, const Operand& operand) {
        void* tagged = nullptr;
        size_t nbytes = 0;
        if (diopiGetTensorStoragePtr(handle, &tagged) != diopiSuccess || diopiGetTensorStorageNbytes(handle, &nbytes) != diopiSuccess) return;
        auto* const base = static_cast<char*>(kernel_address(tagged));
        const auto storage = storage_over(base, nbytes, operand.tensor->device());
        const auto rebase = [&](const Operand& in) {
            const auto itemsize = static_cast<int64_t>(in.tensor->dtype().itemsize());
            if (in.begin < base || in.end > base + nbytes || (in.begin - base) % itemsize != 0) return;
            in.tensor->set_storage_keep_dtype(storage);
            in.tensor->set_storage_offset((in.begin - base) / itemsize);
        };
        for (size_t i = 0; i < count_; ++i) rebase(seen_[i]);
        if (&operand == &beyond_) rebase(operand);
    }

    std::array<Operand, 16> seen_;
    size_t count_ = 0;
    Operand beyond_;
};

thread_local CallTensors of_call;

}  // namespace

void begin_call() { of_call.clear(); }

at::Tensor view(diopiConstTensorHandle_t handle) { return of_call.add(handle, /*reuse=*/!kernels_run_later()); }

std::optional<at::Tensor> optional_view(diopiConstTensorHandle_t handle) {
    return handle ? std::optional<at::Tensor>(view(handle)) : std::nullopt;
}

at::Tensor view_or_undefined(diopiConstTensorHandle_t handle) { return handle ? view(handle) : at::Tensor(); }

}  // namespace dipu_vendor
