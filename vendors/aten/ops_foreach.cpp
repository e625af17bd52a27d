// The same operation on every tensor of a list.
#include "chip.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include KERNELS(add)
#include KERNELS(mul)

#include "kernel.h"

using namespace dipu_vendor;
using at::native::wrapped_scalar_tensor;

namespace {

using Tensors = std::vector<at::Tensor>;

// ATen would give an output of another shape the shape of its input.
template <class Body>
void each(Tensors& outs, Tensors& inputs, Body body) {
    for (size_t i = 0; i < inputs.size(); ++i) {
        TORCH_CHECK(outs[i].defined() && inputs[i].defined(), "tensor ", i, " of the list is NULL");
        TORCH_CHECK(outs[i].sizes() == inputs[i].sizes(), "output ", i, " has the shape ", outs[i].sizes(), " but the input has ",
                    inputs[i].sizes());
        body(outs[i], inputs[i]);
    }
}

void add_number(Tensors& outs, Tensors& inputs, at::Scalar other) {
    each(outs, inputs, [&](at::Tensor& o, at::Tensor& x) { kernels::add_out(o, x, wrapped_scalar_tensor(other)); });
}

void multiply_number(Tensors& outs, Tensors& inputs, at::Scalar other) {
    each(outs, inputs, [&](at::Tensor& o, at::Tensor& x) { kernels::mul_out(o, x, wrapped_scalar_tensor(other)); });
}

void multiply_tensor(Tensors& outs, Tensors& inputs, at::Tensor& other) {
    TORCH_CHECK(other.dim() == 0, "the factor of a list is one number, not a tensor of shape ", other.sizes());
    each(outs, inputs, [&](at::Tensor& o, at::Tensor& x) { kernels::mul_out(o, x, other); });
}

}  // namespace

#define FOREACH(Name, InPlaceName, kernel, Other)                                                                              \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t* outs, diopiConstTensorHandle_t* inputs,            \
                             int64_t inputSize, Other other) {                                                                 \
        return run(ctx, __func__, kernel, list(outs, inputSize), list(inputs, inputSize), other);                              \
    }                                                                                                                          \
    diopiError_t diopi##InPlaceName(diopiContextHandle_t ctx, diopiTensorHandle_t* inputs, int64_t inputSize, Other other) {   \
        return run(ctx, __func__, kernel, list(inputs, inputSize), list(inputs, inputSize), other);                            \
    }

FOREACH(ForeachaddScalar, ForeachaddInpScalar, add_number, const diopiScalar_t*)
FOREACH(ForeachmulScalar, ForeachmulInpScalar, multiply_number, const diopiScalar_t*)
FOREACH(ForeachmulTensor, ForeachmulInpTensor, multiply_tensor, const diopiConstTensorHandle_t)
