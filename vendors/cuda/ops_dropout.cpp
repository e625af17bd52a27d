// Dropout, with the numbers that torch.cuda draws.
#include "chip.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include KERNELS(_fused_dropout)
#include KERNELS(bernoulli)
#include <ATen/ops/empty.h>
#include KERNELS(mul)
#include KERNELS(ne)

#include "draw.h"
#include "results.h"

using namespace dipu_vendor;

namespace {

void drop(at::Tensor& out, at::Tensor& mask, const at::Tensor& x, double p, at::Generator& generator) {
    check_shape(out, x.sizes());
    mask.expand(x.sizes());  // throws if it does not fit
    if (p >= 1) {
        out.zero_();
        mask.zero_();
    } else if (mask.sizes() == x.sizes()) {
        const auto [values, kept] = kernels::_fused_dropout(x, 1 - p, generator);
        out.copy_(values);
        mask.copy_(kept);
    } else {  // whole channels
        at::Tensor noise = at::empty(mask.sizes(), x.options());
        kernels::bernoulli_(noise, 1 - p, generator);
        kernels::ne_out(mask, noise, at::Scalar(0));
        kernels::mul_out(out, x, noise.div_(1 - p));
    }
}

diopiError_t dropout(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiTensorHandle_t mask,
                     diopiConstTensorHandle_t input, double p, bool train, diopiGeneratorHandle_t generator) {
    if (train)
        return draw_from_values(ctx, name, generator, [&](at::Generator& g) {
            at::Tensor o = view(out), m = view(mask);
            drop(o, m, view(input), p, g);
        });
    return run(ctx, name, [](at::Tensor& o, at::Tensor& m, at::Tensor& x) { write(o, x), m.fill_(true); }, out, mask, input);
}

}  // namespace

diopiError_t diopiDropout(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t mask,
                          diopiConstTensorHandle_t input, double p, bool train, diopiGeneratorHandle_t generator) {
    return dropout(ctx, __func__, out, mask, input, p, train, generator);
}

diopiError_t diopiDropoutInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiTensorHandle_t mask, double p, bool train,
                             diopiGeneratorHandle_t generator) {
    return dropout(ctx, __func__, input, mask, input, p, train, generator);
}
