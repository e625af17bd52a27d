#include "outputs.h"

#include <c10/core/WrapDimMinimal.h>

namespace dipu {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

}  // namespace

at::Tensor empty_on(int device, at::IntArrayRef sizes, at::ScalarType type) {
    OnDevice here(device);
    return at::detail::empty_generic(sizes, device_allocator(), kKeys, type, std::nullopt);
}

at::Tensor empty_strided_on(int device, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
    OnDevice here(device);
    return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys, type);
}

void check_in_place(const at::Tensor& self, at::IntArrayRef sizes, at::ScalarType type) {
    TORCH_CHECK(type == self.scalar_type(), "Bad in-place call: input tensor dtype ", self.dtype(), " and output tensor dtype ", type, " should match");
    TORCH_CHECK(sizes == self.sizes(), "Bad in-place call: input tensor size ", self.sizes(), " and output tensor size ", sizes, " should match");
}

void resize_out(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
    TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(), ", but got ", out.dtype(), " instead");
    const bool resized = at::native::resize_output(out, sizes);
    if (!resized) return;
    if (!strides.empty()) {
        out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    } else if (options.memory_format_opt().has_value()) {
        out.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
    }
}

const at::Tensor& value(const std::optional<at::Tensor>& tensor) {
    static const auto* undefined = new at::Tensor;
    return tensor ? *tensor : *undefined;
}

at::Tensor like(const at::Tensor& tensor, std::optional<at::ScalarType> type) {
    const auto dtype = type.value_or(tensor.scalar_type());
    if (tensor.is_contiguous()) return empty_on(index_of(tensor), tensor.sizes(), dtype);
    if (tensor.is_non_overlapping_and_dense()) return empty_strided_on(index_of(tensor), tensor.sizes(), tensor.strides(), dtype);
    return empty_strided_on(index_of(tensor), tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()), dtype);
}

at::Tensor broadcast(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
    if (a.sizes() == b.sizes()) return like(a, type);
    return empty_on(index_of(a), at::infer_size_dimvector(a.sizes(), b.sizes()), type);
}

at::Tensor broadcast(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
    if (condition.sizes() == a.sizes() && a.sizes() == b.sizes()) return like(condition, a.scalar_type());
    return empty_on(index_of(a), at::infer_size_dimvector(condition.sizes(), at::infer_size_dimvector(a.sizes(), b.sizes())), a.scalar_type());
}

bool expandable(const at::Tensor& small, const at::Tensor& to) { return at::is_expandable_to(small.sizes(), to.sizes()); }

bool one_dtype_of(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors) {
    std::optional<at::ScalarType> type;
    for (const at::Tensor& tensor : tensors) {
        if (!tensor.defined()) continue;
        if (type && *type != tensor.scalar_type()) return false;
        type = tensor.scalar_type();
    }
    return true;
}

bool one_dtype(const at::ITensorListRef& tensors) {
    std::optional<at::ScalarType> type;
    for (const at::Tensor& tensor : tensors) {
        if (type && *type != tensor.scalar_type()) return false;
        type = tensor.scalar_type();
    }
    return true;
}

at::Tensor masked_stat(bool wanted, const at::Tensor& input) {
    return wanted ? empty_on(index_of(input), {input.size(1)}, input.scalar_type()) : at::Tensor();
}

at::Tensor masked_bias(bool wanted, const at::Tensor& grad_output) {
    return wanted ? empty_on(index_of(grad_output), {grad_output.size(1)}, grad_output.scalar_type()) : at::Tensor();
}

at::Tensor layer_norm_stat(const at::Tensor& input, at::IntArrayRef normalized_shape) {
    at::DimVector sizes(input.sizes());
    TORCH_CHECK(!normalized_shape.empty(), "Expected normalized_shape to be at least 1-dimensional, but got normalized_shape = ", normalized_shape);
    TORCH_CHECK(normalized_shape.size() <= sizes.size(), "layer_norm: normalized_shape ", normalized_shape, " does not fit an input of shape ", input.sizes());
    for (size_t i = 0; i < normalized_shape.size(); ++i) {
        auto& size = sizes[sizes.size() - 1 - i];
        TORCH_CHECK(size == normalized_shape[normalized_shape.size() - 1 - i], "Given normalized_shape=", normalized_shape,
                    ", expected input with shape ending so, but got input of size ", input.sizes());
        size = 1;
    }
    const bool wide = !full_precision(input) && vendor().has(DIPU_FEATURE_WIDE_STATISTICS);
    return empty_on(index_of(input), sizes, wide ? at::kFloat : input.scalar_type());
}

at::Tensor channel_stat(const at::Tensor& input, bool training) {
    return empty_on(index_of(input), {training ? input.size(1) : 0}, input.scalar_type());
}

at::Tensor group_stat(const at::Tensor& input, int64_t batch, int64_t groups) {
    return empty_on(index_of(input), {batch, groups}, input.scalar_type());
}

at::Tensor conv2d_out(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation) {
    at::DimVector sizes{input.size(0), weight.size(0)};
    for (int64_t d = 0; d < 2; ++d) {
        const int64_t window = dilation[d] * (weight.size(d + 2) - 1) + 1;
        sizes.push_back((input.size(d + 2) + 2 * padding[d] - window) / stride[d] + 1);
    }
    const auto format = input.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                                weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast
                            ? at::MemoryFormat::ChannelsLast
                            : at::MemoryFormat::Contiguous;
    at::Tensor out = empty_on(index_of(input), sizes, input.scalar_type());
    if (format == at::MemoryFormat::ChannelsLast) out.unsafeGetTensorImpl()->empty_tensor_restride(format);
    return out;
}

at::Tensor pool_out(const at::Tensor& input, at::IntArrayRef output_size) {
    TORCH_CHECK(output_size.size() == 2, "adaptive_avg_pool2d: output_size must be 2, got ", output_size.size());
    return empty_on(index_of(input), {input.size(0), input.size(1), output_size[0], output_size[1]}, input.scalar_type());
}

at::Tensor selected(const at::Tensor& input, int64_t dim, const at::Tensor& index) {
    at::DimVector sizes(input.sizes());
    sizes[c10::maybe_wrap_dim(dim, input.dim())] = index.numel();
    return empty_on(index_of(input), sizes, input.scalar_type());
}

at::Tensor embedded(const at::Tensor& weight, const at::Tensor& indices) {
    at::DimVector sizes(indices.sizes());
    sizes.push_back(weight.size(1));
    return empty_on(index_of(weight), sizes, weight.scalar_type());
}

at::Tensor embedding_grad(const at::Tensor& grad_output, int64_t num_weights) {
    return empty_on(index_of(grad_output), {num_weights, grad_output.size(-1)}, grad_output.scalar_type());
}

}  // namespace dipu
