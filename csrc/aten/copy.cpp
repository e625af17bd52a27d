#include "copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../runtime/pinned.h"
#include "../runtime/sync_debug.h"
#include "alias.h"
#include "wrapper.h"

namespace dipu {
namespace {

void copy_memory(int device, void* destination, const void* source, size_t bytes, dipuCopyKind kind) {
    if (bytes == 0) return;
    ProfiledCopy profiled(device, destination, source, bytes, kind);
    check(vendor()->copy(current_stream_handle(device), destination, source, bytes, kind), "copying memory");
    profiled.queued();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && ((a.is_contiguous() && b.is_contiguous()) ||
                                                  (a.strides() == b.strides() && a.is_non_overlapping_and_dense()));
}

bool lazy_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

void boxed_copy(const at::Tensor& destination, const at::Tensor& source) {
    static OpRecord& record = op_record("copy_");
    torch::jit::Stack stack{destination, source, false};
    fallback(record, &stack);
}

// Within one device: the vendor's copy operator where bytes alone do not do.
void copy_on_device(const at::Tensor& destination, const at::Tensor& source) {
    const int device = destination.device().index();
    at::assert_no_internal_overlap(destination);
    at::assert_no_partial_overlap(destination, source);
    if (same_layout(destination, source))
        return copy_memory(device, destination.mutable_data_ptr(), source.const_data_ptr(), destination.nbytes(), DIPU_DEVICE_TO_DEVICE);
    static OpRecord& record = op_record("copy_");
    static Operator op("diopiCopyInp", __LINE__);
    Call call(op, record);
    at::Tensor target = destination;
    if (call.accepts(kFp | kInt | kBool, source, destination) && call.run<decltype(&::diopiCopyInp)>(handle(source), handle(target))) return;
    boxed_copy(destination, source);
}

at::Tensor dense_on_device(const at::Tensor& source) {
    if (source.is_contiguous()) return source;
    at::Tensor dense = like_contiguous(source);
    copy_on_device(dense, source);
    return dense;
}

void wait(int device, const char* what) {
    note_synchronization(what);
    synchronize_stream(device, current_stream(device));
}

// The copy may go on after the call if both ends allow it.
void finish(int device, const at::Tensor& host, bool direct, bool non_blocking) {
    if (non_blocking && direct && is_pinned(host.const_data_ptr()))
        record_pinned(host.const_data_ptr(), device, current_stream(device));
    else
        wait(device, "a copy between host and device");
}

void copy_to_device(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
    const int device = destination.device().index();
    const bool direct = source.scalar_type() == destination.scalar_type() && source.is_contiguous();
    at::Tensor host = direct ? source : at::_to_copy(source, source.options().dtype(destination.scalar_type()), false, at::MemoryFormat::Contiguous);
    at::Tensor target = destination.is_contiguous() ? destination : like_contiguous(destination);
    copy_memory(device, target.mutable_data_ptr(), host.const_data_ptr(), host.nbytes(), DIPU_HOST_TO_DEVICE);
    if (!target.is_same(destination)) copy_on_device(destination, target);
    finish(device, host, direct, non_blocking);
}

void copy_to_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
    const int device = source.device().index();
    const bool direct = source.scalar_type() == destination.scalar_type() && destination.is_contiguous();
    at::Tensor dense = dense_on_device(source);
    at::Tensor host = direct ? destination : at::empty(source.sizes(), destination.options().dtype(source.scalar_type()));
    copy_memory(device, host.mutable_data_ptr(), dense.const_data_ptr(), dense.nbytes(), DIPU_DEVICE_TO_HOST);
    finish(device, host, direct, non_blocking);
    if (!direct) destination.copy_(host);
}

void copy_between_devices(const at::Tensor& destination, const at::Tensor& source) {
    const int from = source.device().index();
    at::Tensor dense = dense_on_device(source);
    at::Tensor landed = empty_on(destination.device().index(), dense.sizes(), dense.scalar_type());
    wait(destination.device().index(), "a copy between devices");  // its memory may still be in use by work queued there
    copy_memory(from, landed.mutable_data_ptr(), dense.const_data_ptr(), dense.nbytes(), DIPU_DEVICE_TO_DEVICE);
    wait(from, "a copy between devices");
    copy_on_device(destination, landed);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
    static OpRecord& record = op_record("copy_");
    ProfiledOperator profiled(record.name);
    if (self.is_same(source)) return self;
    if (source.layout() != at::kStrided) {
        copy_tensor(self, source.to_dense(), non_blocking);
        return self;
    }
    copy_tensor(self, self.sizes() == source.sizes() ? source : source.expand(self.sizes()), non_blocking);
    return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
    static OpRecord& record = op_record("_copy_from");
    ProfiledOperator profiled(record.name);
    copy_tensor(destination, self.sizes() == destination.sizes() ? self : self.expand(destination.sizes()), non_blocking);
    return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
    destination.resize_(self.sizes());
    return copy_from(self, destination, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
    TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
    static OpRecord& record = op_record("_local_scalar_dense");
    ProfiledOperator profiled(record.name);
    const int device = self.device().index();
    at::Tensor host = at::empty({}, at::TensorOptions().dtype(self.scalar_type()));
    copy_memory(device, host.mutable_data_ptr(), self.const_data_ptr(), self.dtype().itemsize(), DIPU_DEVICE_TO_HOST);
    wait(device, "reading a number from the device");
    if (self.is_conj()) host.unsafeGetTensorImpl()->_set_conj(true);
    if (self.is_neg()) host.unsafeGetTensorImpl()->_set_neg(true);
    return at::_local_scalar_dense(host.resolve_conj().resolve_neg());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("copy_", copy_);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar);
}

}  // namespace

void copy_tensor(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
    if (destination.numel() == 0) return;
    if (lazy_bits(destination) || lazy_bits(source)) return boxed_copy(destination, source);
    if (!on_device(source)) {
        TORCH_CHECK(source.is_cpu(), "dipu: copying from ", source.device(), " is not supported; copy to the CPU first");
        return copy_to_device(destination, source, non_blocking);
    }
    if (!on_device(destination)) {
        TORCH_CHECK(destination.is_cpu(), "dipu: copying to ", destination.device(), " is not supported; copy to the CPU first");
        return copy_to_host(destination, source, non_blocking);
    }
    if (destination.device() == source.device()) return copy_on_device(destination, source);
    copy_between_devices(destination, source);
}

}  // namespace dipu
