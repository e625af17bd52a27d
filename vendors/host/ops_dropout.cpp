// Dropout, with the numbers that torch draws on the CPU.
#include "chip.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include KERNELS(bernoulli)
#include KERNELS(div)
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include KERNELS(mul)
#include KERNELS(ne)

#include "draw.h"
#include "results.h"

using namespace dipu_vendor;

namespace {

// Without training nothing is dropped.
diopiError_t keep_all(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiTensorHandle_t mask,
                      diopiConstTensorHandle_t input) {
    return run(ctx, name, [](at::Tensor& o, at::Tensor& m, at::Tensor& x) { write(o, x), m.fill_(true); }, out, mask, input);
}

// As torch's own dropout on the CPU: noise of the input's dtype, 0 or 1/(1-p), times the input. The mask's shape is the noise's:
// the input's, or one that repeats over it (whole channels are dropped).
diopiError_t drop(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiTensorHandle_t mask,
                  diopiConstTensorHandle_t input, double p, diopiGeneratorHandle_t generator) {
    at::Tensor o, m, x, noise;
    const auto error = guarded(name, [&] {
        o = view(out), m = view(mask), x = view(input);
        check_shape(o, x.sizes());
        m.expand(x.sizes());  // throws if it does not fit
        draw_now(ctx, generator, [&](at::Generator& g) {
            noise = m.sizes() == x.sizes() ? at::empty_like(x) : at::empty(m.sizes(), x.options());
            kernels::bernoulli_(noise, 1 - p, g);
        });
    });
    if (error != diopiSuccess) return error;
    return LAUNCH(ctx, name, [o, m, x, noise, p]() mutable {
        kernels::ne_out(m, noise, at::Scalar(0));
        if (p < 1) kernels::div_(noise, at::native::wrapped_scalar_tensor(1 - p));
        kernels::mul_out(o, x, noise);
    });
}

}  // namespace

diopiError_t diopiDropout(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t mask,
                          diopiConstTensorHandle_t input, double p, bool train, diopiGeneratorHandle_t generator) {
    return train ? drop(ctx, __func__, out, mask, input, p, generator) : keep_all(ctx, __func__, out, mask, input);
}

diopiError_t diopiDropoutInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiTensorHandle_t mask, double p, bool train,
                             diopiGeneratorHandle_t generator) {
    return train ? drop(ctx, __func__, input, mask, input, p, generator) : keep_all(ctx, __func__, input, mask, input);
}
