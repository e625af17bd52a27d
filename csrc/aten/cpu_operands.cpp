#include "cpu_operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_coalesced.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_to_copy.h>
#include <c10/core/CPUAllocator.h>

#include "../profiler/recorder.h"
#include "alias.h"
#include "sparse.h"

namespace dipu {
namespace {

void copy_bytes(int device, void* destination, const void* source, size_t bytes, dipuCopyKind kind) {
    if (bytes == 0) return;
    {
        ProfiledCopy profiled(device, destination, source, bytes, kind);
        check(vendor()->copy(current_stream_handle(device), destination, source, bytes, kind), "copying between host and device");
        profiled.queued();
    }
    synchronize_stream(device, current_stream(device));
}

const char* at_byte(const c10::StorageImpl* storage, size_t byte) { return static_cast<const char*>(storage->data()) + byte; }

bool same_geometry(const c10::TensorImpl* a, const c10::TensorImpl* b) { return a->sizes() == b->sizes() && a->strides() == b->strides(); }

// Quantized, mkldnn and other opaque tensors are neither dense nor sparse: the device has none.
void check_layout(const at::Tensor& tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized() && (tensor.layout() == at::kStrided || tensor.layout() == at::kSparse ||
                                                           at::sparse_csr::is_sparse_compressed(tensor)),
                                "dipu: tensors of layout ", tensor.layout(), tensor.is_quantized() ? " (quantized)" : "",
                                " are not supported; move the tensor to the CPU first");
}

at::Tensor copy_to_device(const at::Tensor& tensor, int device) { return at::_to_copy(tensor, tensor.options().device(dipu_device(device))); }

}  // namespace

int CpuOperands::window_of(const c10::StorageImpl* storage) {
    for (size_t i = 0; i < windows_.size(); ++i)
        if (windows_[i].storage == storage) return static_cast<int>(i);
    return -1;
}

void CpuOperands::add(const at::Tensor& tensor, bool written) {
    if (by_alias_ || !on_device(tensor) || tensor.layout() != at::kStrided) return;
    const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const size_t item = tensor.dtype().itemsize();
    // a multiple of every item size, so that operands of other dtypes over the same storage keep whole offsets
    const size_t low = written ? 0 : (static_cast<size_t>(tensor.storage_offset()) * item) & ~size_t(15);
    const size_t extent = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), item);
    const size_t high = std::min(storage->nbytes(), static_cast<size_t>(tensor.storage_offset()) * item + extent);
    if (int i = window_of(storage); i >= 0) {
        windows_[i].low = std::min(windows_[i].low, low);
        windows_[i].high = std::max(windows_[i].high, high);
        windows_[i].written = windows_[i].written || written;
    } else {
        windows_.push_back({storage, low, std::max(low, high), written, {}, nullptr});
    }
}

at::Tensor CpuOperands::to_cpu(const at::Tensor& tensor, bool written) {
    if (!on_device(tensor)) return tensor;
    check_layout(tensor);
    at::Tensor host = tensor.layout() == at::kStrided ? dense_to_cpu(tensor, written) : sparse_to_cpu(tensor, written);
    if (C10_UNLIKELY(keep_requires_grad_) && tensor.requires_grad()) host.set_requires_grad(true);
    return host;
}

at::Tensor CpuOperands::dense_to_cpu(const at::Tensor& tensor, bool written) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage(), "dipu: a tensor without storage cannot be used here");
    if (by_alias_) {
        at::Tensor host = cpu_alias(tensor);
        operands_.push_back({tensor, host, written, -1});
        return host;
    }
    const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    int index = window_of(storage);
    if (index < 0) {  // a part of a sparse tensor, found only now
        add(tensor, written);
        index = window_of(storage);
    }
    Window& window = windows_[index];
    if (!window.host) {
        const size_t bytes = window.high - window.low;
        window.host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, c10::GetCPUAllocator()->allocate(bytes),
                                                            c10::GetCPUAllocator(), true);
        window.host_data = window.host->data();
        copy_bytes(tensor.device().index(), window.host->mutable_data(), at_byte(storage, window.low), bytes, DIPU_DEVICE_TO_HOST);
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(window.host), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    const auto shift = static_cast<int64_t>(window.low / tensor.dtype().itemsize());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset() - shift);
    if (tensor.is_conj()) impl->_set_conj(true);
    if (tensor.is_neg()) impl->_set_neg(true);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    at::Tensor host(std::move(impl));
    operands_.push_back({tensor, host, written, index});
    return host;
}

at::Tensor CpuOperands::sparse_to_cpu(const at::Tensor& tensor, bool written) {
    const auto options = tensor.options().device(at::kCPU);
    at::Tensor host;
    if (tensor.layout() == at::kSparse) {
        host = at::_sparse_coo_tensor_unsafe(to_cpu(tensor._indices(), written), to_cpu(tensor._values(), written), tensor.sizes(), options);
        host._coalesced_(tensor.is_coalesced());
    } else {
        auto* csr = static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
        host = at::_sparse_compressed_tensor_unsafe(to_cpu(csr->compressed_indices(), written), to_cpu(csr->plain_indices(), written),
                                                    to_cpu(csr->values(), written), tensor.sizes(), options);
    }
    operands_.push_back({tensor, host, written, -1});
    return host;
}

// The kernel worked on an alias: it may have resized it.
void CpuOperands::write_back_alias(Operand& operand) {
    auto* host = operand.host.unsafeGetTensorImpl();
    auto* device = operand.device.unsafeGetTensorImpl();
    auto* host_storage = host->unsafe_storage().unsafeGetStorageImpl();
    auto* storage = device->unsafe_storage().unsafeGetStorageImpl();
    const void* expected = host_alias(storage->data());
    if (C10_UNLIKELY(host_storage->data() != expected)) {  // it got new memory
        if (Block* block = block_of(storage)) {
            c10::StorageImpl* cached = host_storage;
            if (block->cpu_alias.compare_exchange_strong(cached, nullptr)) c10::raw::intrusive_ptr::decref(host_storage);
        }
        const size_t bytes = host_storage->nbytes();
        c10::DataPtr fresh = host_storage->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
        host_storage->set_nbytes(0);
        storage->set_data_ptr_noswap(adopt(std::move(fresh), bytes, operand.device.device().index()));
        storage->set_nbytes(bytes);
    } else if (host_storage->nbytes() != storage->nbytes()) {
        storage->set_nbytes(host_storage->nbytes());
    }
}

void CpuOperands::write_back_copy(Operand& operand) {
    Window& window = windows_[operand.window];
    auto* storage = operand.device.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    const int device = operand.device.device().index();
    const size_t bytes = window.host->nbytes();
    if (window.host->data() != window.host_data) {  // resized
        c10::DataPtr fresh = allocate_on(device, bytes);
        copy_bytes(device, fresh.get(), window.host->data(), bytes, DIPU_HOST_TO_DEVICE);
        storage->set_data_ptr_noswap(std::move(fresh));
        storage->set_nbytes(bytes);
        window.host_data = window.host->data();
    } else if (window.written) {
        copy_bytes(device, const_cast<char*>(at_byte(storage, window.low)), window.host->data(), std::min(bytes, window.high - window.low),
                   DIPU_HOST_TO_DEVICE);
        window.written = false;  // once for all operands in it
    }
}

int64_t CpuOperands::base(const Operand& operand) const {
    return operand.window < 0 ? 0 : static_cast<int64_t>(windows_[operand.window].low / operand.host.dtype().itemsize());
}

void CpuOperands::write_back() {
    for (auto& operand : operands_) {
        if (!operand.written) continue;
        if (operand.device.layout() != at::kStrided) {
            write_back_sparse(operand);
            continue;
        }
        if (by_alias_)
            write_back_alias(operand);
        else
            write_back_copy(operand);
        auto* host = operand.host.unsafeGetTensorImpl();
        auto* device = operand.device.unsafeGetTensorImpl();
        const int64_t offset = host->storage_offset() + base(operand);
        if (!same_geometry(host, device) || offset != device->storage_offset())
            device->set_sizes_and_strides(host->sizes(), host->strides(), offset);
        if (C10_UNLIKELY(operand.host.is_conj() != operand.device.is_conj())) device->_set_conj(operand.host.is_conj());
        if (C10_UNLIKELY(operand.host.is_neg() != operand.device.is_neg())) device->_set_neg(operand.host.is_neg());
    }
}

at::Tensor CpuOperands::to_device(at::Tensor result, int device) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (auto& operand : operands_)
        if (operand.host.is_same(result)) return operand.device;
    if (device < 0) return result;
    check_layout(result);
    if (result.layout() != at::kStrided) return sparse_to_device(result, device);
    const auto* storage = result.storage().unsafeGetStorageImpl();
    for (auto& operand : operands_)
        if (operand.host.layout() == at::kStrided && operand.host.storage().unsafeGetStorageImpl() == storage) {
            const int64_t low = operand.window < 0 ? 0 : static_cast<int64_t>(windows_[operand.window].low / result.dtype().itemsize());
            return device_view(operand.device.storage(), result, result.storage_offset() + low);
        }
    if (by_alias_ && adoptable(result)) return adopt_tensor(std::move(result), device);
    return copy_to_device(result, device);
}

at::Tensor CpuOperands::sparse_to_device(const at::Tensor& result, int device) {
    if (result.layout() == at::kSparse)
        return make_coo(to_device(result._indices(), device), to_device(result._values(), device), result.sizes(), result.is_coalesced());
    auto* csr = static_cast<at::SparseCsrTensorImpl*>(result.unsafeGetTensorImpl());
    return make_compressed(to_device(csr->compressed_indices(), device), to_device(csr->plain_indices(), device), to_device(csr->values(), device), result.sizes(),
                           result.layout());
}

// A written sparse operand takes over the parts its CPU twin ended with.
void CpuOperands::write_back_sparse(Operand& operand) {
    const int device = operand.device.device().index();
    const at::Tensor& host = operand.host;
    if (host.layout() == at::kSparse) {
        auto* impl = static_cast<at::SparseTensorImpl*>(operand.device.unsafeGetTensorImpl());
        impl->raw_resize_(host.sparse_dim(), host.dense_dim(), host.sizes());
        impl->set_indices_and_values_unsafe(to_device(host._indices(), device), to_device(host._values(), device));
        impl->set_coalesced(host.is_coalesced());
    } else {
        auto* from = static_cast<at::SparseCsrTensorImpl*>(host.unsafeGetTensorImpl());
        auto* impl = static_cast<at::SparseCsrTensorImpl*>(operand.device.unsafeGetTensorImpl());
        impl->set_member_tensors(to_device(from->compressed_indices(), device), to_device(from->plain_indices(), device), to_device(from->values(), device),
                                 host.sizes());
    }
}

}  // namespace dipu
