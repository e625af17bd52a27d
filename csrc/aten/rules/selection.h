// Outputs of indexing, movement and random numbers; the table names these rules.
#pragma once
#include <c10/core/WrapDimMinimal.h>

#include "../outputs.h"

namespace dipu {

// An output the user gave takes the shape of the result; ATen warns if it had another one.
inline void resize_to(const at::Tensor& out, at::IntArrayRef sizes) { at::native::resize_output(out, sizes); }

inline at::Tensor sized_like(const at::Tensor& tensor, at::IntArrayRef sizes) {
    return empty_on(index_of(tensor), sizes, tensor.scalar_type());
}
inline at::Tensor like_contiguous(const at::Tensor& tensor, at::ScalarType type) {
    return empty_on(index_of(tensor), tensor.sizes(), type);
}

// An optional number of slices and the like.
inline int64_t or_number(std::optional<int64_t> value, int64_t otherwise) { return value.value_or(otherwise); }

inline at::DimVector stacked_sizes(at::TensorList tensors, int64_t dim) {
    at::DimVector sizes(tensors[0].sizes());
    for (const at::Tensor& tensor : tensors)
        TORCH_CHECK(tensor.sizes() == tensors[0].sizes(), "stack expects each tensor to be equal size, but got ", tensors[0].sizes(),
                    " and ", tensor.sizes());
    sizes.insert(sizes.begin() + c10::maybe_wrap_dim(dim, tensors[0].dim() + 1), static_cast<int64_t>(tensors.size()));
    return sizes;
}

inline at::Tensor repeated(const at::Tensor& tensor, at::IntArrayRef repeats) {
    const auto extra = static_cast<int64_t>(repeats.size()) - tensor.dim();
    TORCH_CHECK(extra >= 0, "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
    at::DimVector sizes(repeats);
    for (int64_t i = 0; i < tensor.dim(); ++i) sizes[extra + i] *= tensor.size(i);
    for (const int64_t repeat : repeats)
        TORCH_CHECK(repeat >= 0, "Trying to create tensor with negative dimension ", repeat, ": ", repeats);
    return empty_on(index_of(tensor), sizes, tensor.scalar_type());
}

// One pick after the other instead of the categories.
inline at::DimVector picked_sizes(const at::Tensor& weights, int64_t count) {
    at::DimVector sizes(weights.sizes());
    sizes.back() = count;
    return sizes;
}
inline at::Tensor picks(const at::Tensor& weights, int64_t count) {
    return empty_on(index_of(weights), picked_sizes(weights, count), at::kLong);
}

}  // namespace dipu
