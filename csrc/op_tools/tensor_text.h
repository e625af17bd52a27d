// What a row says of tensors and other values: dtype, shape, device, and strides where a tensor is not contiguous.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/python_headers.h>

#include <string>

namespace op_tools {

// What is said of a tensor, without the tensor.
class TensorFacts {
   public:
    explicit TensorFacts(const at::Tensor& tensor);

    bool operator==(const TensorFacts& other) const {
        return dtype_ == other.dtype_ && layout_ == other.layout_ && device_ == other.device_ && has_sizes_ == other.has_sizes_ &&
               sizes_ == other.sizes_ && strides_ == other.strides_;
    }
    size_t hash() const;

    // Of the sum of this and another.
    void add(const TensorFacts& other);

    // Whether sizes are known: not of nested tensors.
    bool has_sizes() const { return has_sizes_; }
    // `float32[8, 128]@dipu:0`; written once for equal tensors. With the GIL held; valid until the next text is asked for.
    const std::string& text() const;

   private:
    std::string written() const;

    at::ScalarType dtype_;
    at::Layout layout_;
    c10::Device device_;
    bool has_sizes_;
    at::DimVector sizes_, strides_;  // a sparse tensor has no strides
};

}  // namespace op_tools
