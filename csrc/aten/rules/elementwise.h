// Outputs of element-wise operators, comparisons and creation; the table names these rules.
#pragma once
#include <ATen/ops/result_type.h>

#include <cmath>
#include <vector>

#include "../outputs.h"

namespace dipu {

// The absolute values of complex numbers are real.
inline at::Tensor real_like(const at::Tensor& tensor) { return like(tensor, c10::toRealValueType(tensor.scalar_type())); }

inline at::Tensor complex_of(const at::Tensor& real, const at::Tensor& imag) {
    return broadcast(real, imag, c10::toComplexType(real.scalar_type()));
}

// As large as the tensor, of the dtype that an operation with the other operand (a number or a tensor of one) has.
template <class Other>
at::Tensor like_result(const at::Tensor& tensor, const Other& other) {
    return like(tensor, at::result_type(tensor, other));
}
template <class Other>
std::vector<at::Tensor> each_result(at::TensorList tensors, const Other& other) {
    std::vector<at::Tensor> made;
    made.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) made.push_back(like_result(tensor, other));
    return made;
}

// ---- outputs that the user gave ----

inline void resize_like(const at::Tensor& out, const at::Tensor& tensor) { at::native::resize_output(out, tensor.sizes()); }
inline void resize_broadcast(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    at::native::resize_output(out, at::infer_size_dimvector(a.sizes(), b.sizes()));
}
// A sequence fills whatever has as many elements as it.
inline void resize_row(const at::Tensor& out, int64_t count) {
    if (out.numel() != count) at::native::resize_output(out, {count});
}
// What cannot be right keeps its size: the operator says what is wrong. int64 counts in whole numbers, as torch does.
inline void resize_range(const at::Tensor& out, const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
    double count = std::ceil((end.toDouble() - start.toDouble()) / step.toDouble());
    if (out.scalar_type() == at::kLong && std::isfinite(count)) {
        const int64_t from = start.toLong(), to = end.toLong(), by = step.toLong();
        if (by == 0) return;
        count = static_cast<double>((to - from + by - (by > 0 ? 1 : -1)) / by);
    }
    if (count >= 0 && count < 9e18) resize_row(out, static_cast<int64_t>(count));
}

}  // namespace dipu
