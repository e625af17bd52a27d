// Factories, views, storages: what every tensor of the device is made of.
#include <ATen/EmptyTensor.h>
#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "../profiler/recorder.h"
#include "../runtime/allocator.h"
#include "outputs.h"

namespace dipu {
namespace {

int device_for(const std::optional<at::Device>& device, const std::optional<at::Layout>& layout, const std::optional<bool>& pinned) {
    TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "dipu: a dense factory was asked for layout ", *layout);
    TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "Only dense CPU tensors can be pinned");
    const int index = device ? index_or_current(*device) : current_device();
    check_device(index);
    return index;
}

// torch.use_deterministic_algorithms: what nobody wrote has a known content.
bool fills_new_memory() {
    const auto& settings = at::globalContext();
    return settings.deterministicAlgorithms() && settings.deterministicFillUninitializedMemory();
}

at::Tensor filled_if_deterministic(at::Tensor tensor) {
    if (C10_UNLIKELY(fills_new_memory())) at::native::fill_empty_deterministic_(tensor);
    return tensor;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
    ProfiledRuntimeCall profiled("wrapper_DIPU_empty_memory_format");
    OnDevice here(device_for(device, layout, pinned));
    return filled_if_deterministic(
        at::detail::empty_generic(size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pinned) {
    ProfiledRuntimeCall profiled("wrapper_DIPU_empty_strided");
    return filled_if_deterministic(empty_strided_on(device_for(device, layout, pinned), size, stride, c10::dtype_or_default(dtype)));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
    ProfiledRuntimeCall profiled("wrapper_DIPU_resize_");
    auto* impl = self.unsafeGetTensorImpl();
    if (self.sizes() == size && !format) return self;
    const size_t bytes = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), static_cast<size_t>(self.storage_offset()));
    impl->set_sizes_contiguous(size);
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    const auto before = static_cast<int64_t>(storage->nbytes());
    if (self.numel() > 0 && bytes > storage->nbytes()) resize_storage(storage, self.device().index(), bytes);
    if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
    if (C10_UNLIKELY(fills_new_memory())) at::native::fill_resize_deterministic_(self, before);
    return self;
}

at::Tensor& set_storage_and_geometry(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
    auto* impl = self.unsafeGetTensorImpl();
    at::native::checkInBoundsForStorage(size, stride.data() ? stride : at::IntArrayRef(c10::contiguous_strides(size)), offset, self.dtype(), storage);
    impl->set_storage_keep_dtype(std::move(storage));
    if (stride.data()) {
        impl->set_sizes_and_strides(size, stride, offset);
    } else {
        impl->set_storage_offset(offset);
        impl->set_sizes_contiguous(size);
    }
    return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
    const auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
    return set_storage_and_geometry(self, std::move(storage), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
    if (self.is_same(source)) return self;
    return set_storage_and_geometry(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
    OnDevice here(self.device().index());
    c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, device_allocator(), true);
    return set_storage_and_geometry(self, std::move(nothing), 0, {0}, {});
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
    return at::native::unfold(self, dimension, size, step);
}
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
    return at::native::_reshape_alias(self, size, stride);
}

void record_stream_(at::Tensor& self, c10::Stream stream) { record_stream(self.storage().data_ptr(), stream.device_index(), stream.id()); }

// torch asks this when a module moves: if yes, a parameter stays the same object with new content. It lists the dense devices it knows and
// says no for all others, which would untie shared weights and leave an optimizer made before the move with the old ones.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
    return self.layout() == at::kStrided && from.layout() == at::kStrided;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("resize_", resize_);
    m.impl("set_.source_Storage", set_storage);
    m.impl("set_.source_Storage_storage_offset", set_storage_and_geometry);
    m.impl("set_.source_Tensor", set_tensor);
    m.impl("set_", set_nothing);
    m.impl("as_strided", as_strided);
    m.impl("view", view);
    m.impl("unfold", unfold);
    m.impl("_reshape_alias", reshape_alias);
    m.impl("record_stream", record_stream_);
}

}  // namespace
}  // namespace dipu
