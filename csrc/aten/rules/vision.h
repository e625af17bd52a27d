// Outputs of reductions, normalisations, convolutions, pooling and images; the table names these rules.
#pragma once
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Pool.h>

#include <vector>

#include "../outputs.h"

namespace dipu {

// ---- reductions ----

// A reduction over some or all dimensions; that of complex numbers is real.
inline at::Tensor reduced(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim) {
    const bool all = !dims || dims->empty();
    const auto gone = at::dim_list_to_bitset(dims, self.dim());
    at::DimVector sizes;
    for (int64_t i = 0; i < self.dim(); ++i) {
        const bool here = all || gone[i];
        if (!here || keepdim) sizes.push_back(here ? 1 : self.size(i));
    }
    return empty_on(index_of(self), sizes, c10::toRealValueType(self.scalar_type()));
}

inline std::vector<at::Tensor> norms_of(at::TensorList tensors) {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& tensor : tensors) norms.push_back(empty_on(index_of(tensor), {}, c10::toRealValueType(tensor.scalar_type())));
    return norms;
}

// ---- normalisations ----

// Statistics that several processes exchange: float32 at least.
inline at::Tensor sync_stat(const at::Tensor& input, bool wanted = true) {
    TORCH_CHECK(input.dim() >= 2, "batch normalisation needs at least 2 dimensions, but the input has ", input.dim());
    const auto type = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return wanted ? empty_on(index_of(input), {input.size(1)}, type) : at::Tensor();
}
inline at::Tensor row_like(const at::Tensor& rows) { return empty_on(index_of(rows), {rows.size(1)}, rows.scalar_type()); }
inline at::Tensor masked_like(bool wanted, const std::optional<at::Tensor>& weight, const at::Tensor& input) {
    if (!wanted) return at::Tensor();
    return weight && weight->defined() ? like_contiguous(*weight) : sync_stat(input);
}

// ---- convolutions ----

inline at::Tensor in_format(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef sizes) {
    const auto last = sizes.size() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
    at::Tensor out = empty_on(index_of(input), sizes, input.scalar_type());
    if (input.suggest_memory_format() == last || weight.suggest_memory_format() == last)
        out.unsafeGetTensorImpl()->empty_tensor_restride(last);
    return out;
}

inline at::Tensor conv_out(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation) {
    at::DimVector sizes{input.size(0), weight.size(0)};
    for (int64_t d = 0; d < input.dim() - 2; ++d) {
        const int64_t window = dilation[d] * (weight.size(d + 2) - 1) + 1;
        sizes.push_back((input.size(d + 2) + 2 * padding[d] - window) / stride[d] + 1);
    }
    return in_format(input, weight, sizes);
}

inline at::Tensor conv_transposed_out(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
                                      at::IntArrayRef dilation, at::IntArrayRef output_padding, int64_t groups) {
    at::DimVector sizes{input.size(0), weight.size(1) * groups};
    for (int64_t d = 0; d < input.dim() - 2; ++d) {
        const int64_t window = dilation[d] * (weight.size(d + 2) - 1) + 1;
        sizes.push_back((input.size(d + 2) - 1) * stride[d] - 2 * padding[d] + window + output_padding[d]);
    }
    return in_format(input, weight, sizes);
}

// ---- pooling ----

inline at::Tensor max_pool3d_out(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                                 at::IntArrayRef dilation, bool ceil_mode) {
    TORCH_CHECK(self.dim() == 4 || self.dim() == 5, "max_pool3d: expected 4 or 5 dimensions, but got ", self.dim());
    const auto along = [](at::IntArrayRef list, size_t i) {
        TORCH_CHECK(list.size() == 1 || list.size() == 3, "max_pool3d: a list must have one number or three, but has ", list.size());
        return list.size() == 1 ? list[0] : list[i];
    };
    at::DimVector sizes(self.sizes());
    for (size_t i = 0; i < 3; ++i) {
        int64_t& size = sizes[sizes.size() - 3 + i];
        const int64_t step = along(stride.empty() ? kernel : stride, i);
        size = at::native::pooling_output_shape<int64_t>(size, along(kernel, i), along(padding, i), step, along(dilation, i), ceil_mode);
    }
    return empty_on(index_of(self), sizes, self.scalar_type());
}
inline at::Tensor max_pool3d_places(const at::Tensor& values) { return empty_on(index_of(values), values.sizes(), at::kLong); }

inline at::Tensor adaptive_pool3d_out(const at::Tensor& self, at::IntArrayRef size) {
    TORCH_CHECK(size.size() == 3, "adaptive_avg_pool3d: output_size must be 3, got ", size.size());
    return empty_on(index_of(self), {self.size(0), self.size(1), size[0], size[1], size[2]}, self.scalar_type());
}

// ---- images ----

inline int64_t count(at::IntArrayRef list) { return static_cast<int64_t>(list.size()); }

inline at::Tensor grid_sampled(const at::Tensor& input, const at::Tensor& grid) {
    return empty_on(index_of(input), {input.size(0), input.size(1), grid.size(1), grid.size(2)}, input.scalar_type());
}

inline at::Tensor sized_as(const at::Tensor& tensor, at::IntArrayRef sizes) {
    return empty_on(index_of(tensor), sizes, tensor.scalar_type());
}

inline at::Tensor columns_of(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation, at::IntArrayRef padding,
                             at::IntArrayRef stride) {
    TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "im2col: expected 3 or 4 dimensions, but got ", self.dim());
    for (at::IntArrayRef list : {kernel, dilation, padding, stride})
        TORCH_CHECK(list.size() == 2, "im2col: expected 2 numbers in every list, but got ", list.size());
    int64_t positions = 1;
    for (size_t i = 0; i < 2; ++i) {
        const int64_t room = self.size(static_cast<int64_t>(i) - 2) + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
        TORCH_CHECK(kernel[i] > 0 && stride[i] > 0 && room >= 0, "im2col: windows of ", kernel, " do not fit an input of the shape ",
                    self.sizes());
        positions *= room / stride[i] + 1;
    }
    at::DimVector sizes{self.size(-3) * kernel[0] * kernel[1], positions};
    if (self.dim() == 4) sizes.insert(sizes.begin(), self.size(0));
    return sized_as(self, sizes);
}

inline at::Tensor image_of(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef kernel) {
    TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "col2im: expected 2 or 3 dimensions, but got ", self.dim());
    const bool fits = size.size() == 2 && kernel.size() == 2 && kernel[0] > 0 && kernel[1] > 0;
    TORCH_CHECK(fits, "col2im: output_size and kernel_size must be 2 numbers each");
    at::DimVector sizes{self.size(-2) / (kernel[0] * kernel[1]), size[0], size[1]};
    if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
    return sized_as(self, sizes);
}

// Constant padding keeps the layout of images.
inline at::Tensor padded(const at::Tensor& self, at::IntArrayRef pad) {
    const auto count = static_cast<int64_t>(pad.size()) / 2;
    TORCH_CHECK(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
    TORCH_CHECK(count <= self.dim(), "Length of pad should be no more than twice the number of dimensions of the input. Pad length is ",
                pad.size(), " while the input has ", self.dim(), " dimensions.");
    at::DimVector sizes(self.sizes());
    for (int64_t i = 0; i < count; ++i) {
        int64_t& size = sizes[self.dim() - 1 - i];
        size += pad[2 * i] + pad[2 * i + 1];
        TORCH_CHECK(size >= 0, "The input size, plus negative padding ", pad[2 * i], " and ", pad[2 * i + 1],
                    ", resulted in a negative size.");
    }
    at::Tensor out = sized_as(self, sizes);
    if (const auto format = self.suggest_memory_format(); format != at::MemoryFormat::Contiguous)
        out.unsafeGetTensorImpl()->empty_tensor_restride(format);
    return out;
}

}  // namespace dipu
