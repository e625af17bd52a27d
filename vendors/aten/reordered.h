// Arithmetic as another chip would do it: the same sums in another, equally right order.
//
// With `DIPU_HOST_NUMERICS=reordered` every operator that adds up many elements goes through the functions below instead of
// ATen's kernels. Nothing is perturbed: sums are really split (interleaved chunks, blocks of the inner dimension of a
// matrix product, last block first), accumulated in float32 for half precision and in the operand's own precision
// otherwise, and rounded once at the end. Results are deterministic, as accurate as the CPU's, and rarely the same bits.
//
// Running sums stay as they are (a prefix has one natural order and the CPU keeps it in float64), as do scans for extrema,
// gathers, and losses that add one term a row.
//
// `out` may be any strided tensor, also the memory of an input; results are rounded to its dtype when written.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace dipu_vendor::split_sums {

using OptionalTensor = std::optional<at::Tensor>;

// The vocabulary: results are in the accumulation type, whatever the operands are in.
at::Tensor blocked_sum(const at::Tensor& x, at::IntArrayRef dims, bool keepdim);
// [m, k] x [k, n] or [batch, m, k] x [batch, k, n]; k is cut into blocks of the given length, or of one chosen by itself.
at::Tensor blocked_matmul(const at::Tensor& a, const at::Tensor& b, int64_t block = 0);

// Empty `dims`: all.
void sum(at::Tensor& out, const at::Tensor& x, at::IntArrayRef dims, bool keepdim);
void mean(at::Tensor& out, const at::Tensor& x, at::IntArrayRef dims, bool keepdim);
// For finite ord other than 0; the other norms count or compare.
void vector_norm(at::Tensor& out, const at::Tensor& x, double ord, at::IntArrayRef dims, bool keepdim);
void mse_loss(at::Tensor& out, const at::Tensor& x, const at::Tensor& target, bool mean);

void softmax(at::Tensor& out, const at::Tensor& x, int64_t dim);
void log_softmax(at::Tensor& out, const at::Tensor& x, int64_t dim);
void softmax_backward(at::Tensor& grad_input, const at::Tensor& grad_output, const at::Tensor& output, int64_t dim);
void log_softmax_backward(at::Tensor& grad_input, const at::Tensor& grad_output, const at::Tensor& output, int64_t dim);

// Statistics are written in the shape of the tensor they are given. Undefined gradients are not wanted.
void layer_norm(at::Tensor& out, at::Tensor& mean, at::Tensor& rstd, const at::Tensor& x, const OptionalTensor& weight,
                const OptionalTensor& bias, int64_t normalized_dims, double eps);
void layer_norm_backward(at::Tensor& grad_input, at::Tensor& grad_weight, at::Tensor& grad_bias, const at::Tensor& grad_output,
                         const at::Tensor& x, const OptionalTensor& weight, const at::Tensor& mean, const at::Tensor& rstd,
                         int64_t normalized_dims);
void group_norm(at::Tensor& out, at::Tensor& mean, at::Tensor& rstd, const at::Tensor& x, const OptionalTensor& weight,
                const OptionalTensor& bias, int64_t groups, double eps);
// Training only: with fixed statistics there is nothing to sum.
void batch_norm(at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd, const at::Tensor& x,
                const OptionalTensor& weight, const OptionalTensor& bias, at::Tensor running_mean, at::Tensor running_var,
                double momentum, double eps);
// `mean` and `invstd` are the batch's in training, else the running ones.
void batch_norm_backward(at::Tensor& grad_input, at::Tensor& grad_weight, at::Tensor& grad_bias, const at::Tensor& grad_output,
                         const at::Tensor& x, const OptionalTensor& weight, const at::Tensor& mean, const at::Tensor& invstd,
                         bool training);

// beta * input + alpha * a @ b; with beta 0 the input is not read, also if it holds NaN.
void addmm(at::Tensor& out, const OptionalTensor& input, const at::Tensor& a, const at::Tensor& b, double beta, double alpha);

struct Convolution {
    c10::SmallVector<int64_t, 5> stride, padding, dilation;
    int64_t groups;
};
void convolution2d(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                   const Convolution& how);
void convolution2d_backward(at::Tensor& grad_input, at::Tensor& grad_weight, at::Tensor& grad_bias, const at::Tensor& grad_output,
                            const at::Tensor& x, const at::Tensor& weight, const Convolution& how);

struct Pooling {
    c10::SmallVector<int64_t, 5> kernel, stride, padding;
    bool count_include_pad;
    std::optional<int64_t> divisor;
};
void avg_pool2d(at::Tensor& out, const at::Tensor& x, const Pooling& how);
void avg_pool2d_backward(at::Tensor& grad_input, const at::Tensor& grad_output, const Pooling& how);
void adaptive_avg_pool2d(at::Tensor& out, const at::Tensor& x);
void adaptive_avg_pool2d_backward(at::Tensor& grad_input, const at::Tensor& grad_output);

void embedding_backward(at::Tensor& grad_weight, const at::Tensor& grad, const at::Tensor& indices, int64_t padding_idx,
                        bool scale_by_frequency);

}  // namespace dipu_vendor::split_sums
