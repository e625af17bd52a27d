#include "alias.h"

#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>

namespace dipu {
namespace {

// The device of a storage's alias: one of the CPU has no index.
c10::Device alias_device(c10::DeviceIndex index) {
    const c10::DeviceType type = vendor().alias_device();
    return type == c10::kCPU ? c10::Device(type) : c10::Device(type, index);
}

c10::intrusive_ptr<c10::StorageImpl> make_alias(void* host, size_t bytes, c10::Device device) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(host, device),
                                                 c10::GetAllocator(device.type()), true);
}

// The block keeps its alias: made once, found again by every operand that lies in it.
c10::intrusive_ptr<c10::StorageImpl> alias_storage(const c10::StorageImpl* storage) {
    const size_t bytes = storage->nbytes();
    Block* block = block_of(storage);
    const c10::DeviceIndex index = storage->device().index();
    if (!block) return make_alias(host_alias(storage->data()), bytes, alias_device(index));
    void* host = host_alias(block->pointer);
    auto* cached = block->cpu_alias.load(std::memory_order_acquire);
    if (C10_LIKELY(cached && cached->data() == host)) {
        if (C10_UNLIKELY(cached->nbytes() != bytes)) cached->set_nbytes(bytes);
        return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(cached);
    }
    // none yet, or a kernel gave it other memory and then failed
    if (cached && block->cpu_alias.compare_exchange_strong(cached, nullptr)) c10::raw::intrusive_ptr::decref(cached);
    auto made = make_alias(host, bytes, alias_device(index));
    c10::StorageImpl* expected = nullptr;
    c10::raw::intrusive_ptr::incref(made.get());
    if (!block->cpu_alias.compare_exchange_strong(expected, made.get())) {
        c10::raw::intrusive_ptr::decref(made.get());
        return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(expected);
    }
    return made;
}

// torch keeps the device of a tensor in a protected member; an adopted tensor changes its device in place.
struct ImplAccess : c10::TensorImpl {
    using c10::TensorImpl::device_opt_;
};

void change_device(c10::TensorImpl* impl, c10::Device device) {
    impl->_change_backend_component_keys(device);
    impl->*(&ImplAccess::device_opt_) = device;
}

void copy_bits(const at::Tensor& from, c10::TensorImpl* to) {
    if (C10_UNLIKELY(from.is_conj())) to->_set_conj(true);
    if (C10_UNLIKELY(from.is_neg())) to->_set_neg(true);
}

}  // namespace

void* host_alias(const void* pointer) {
    if (!pointer) return nullptr;
    void* host = vendor()->host_alias(pointer);
    if (C10_UNLIKELY(!host)) check(DIPU_ERROR, "asking for the host's address of device memory");
    return host;
}

c10::DispatchKeySet alias_keys() {
    static const c10::DispatchKeySet keys = [] {  // the vendor stays
        switch (vendor().alias_device()) {
            case c10::DeviceType::CUDA: return c10::DispatchKeySet(c10::DispatchKey::CUDA);
            case c10::DeviceType::XPU: return c10::DispatchKeySet(c10::DispatchKey::XPU);
            default: return c10::DispatchKeySet(c10::DispatchKey::CPU);
        }
    }();
    return keys;
}

at::Tensor cpu_alias(const at::Tensor& tensor) {
    auto* device_impl = tensor.unsafeGetTensorImpl();
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(alias_storage(device_impl->unsafe_storage().unsafeGetStorageImpl())),
                                                     alias_keys(), device_impl->dtype());
    impl->set_sizes_and_strides(device_impl->sizes(), device_impl->strides(), device_impl->storage_offset());
    copy_bits(tensor, impl.get());
    if (C10_UNLIKELY(device_impl->is_wrapped_number())) impl->set_wrapped_number(true);
    return at::Tensor(std::move(impl));
}

bool adoptable(const at::Tensor& tensor) {
    return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.storage().unsafeGetStorageImpl()->resizable();
}

at::Tensor adopt_tensor(at::Tensor tensor, int device) {
    auto* impl = tensor.unsafeGetTensorImpl();
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    const size_t bytes = storage->nbytes();
    c10::DataPtr host = storage->set_data_ptr(c10::DataPtr(nullptr, storage->device()));
    storage->set_data_ptr_noswap(adopt(std::move(host), bytes, device));
    storage->set_allocator(device_allocator());
    change_device(impl, dipu_device(device));
    return tensor;
}

at::Tensor device_view(const c10::Storage& storage, const at::Tensor& geometry, int64_t storage_offset) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                     geometry.dtype());
    impl->set_sizes_and_strides(geometry.sizes(), geometry.strides(), storage_offset);
    copy_bits(geometry, impl.get());
    return at::Tensor(std::move(impl));
}

}  // namespace dipu
