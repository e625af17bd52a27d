// Random numbers: initial weights and dropout, given distributions, permutations and picks.
#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/multinomial_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/normal_cpu_dispatch.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/randperm_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>

#include <limits>

#include "draw.h"
#include "kernel.h"
#include "results.h"

using namespace dipu_host;

diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double from, double to,
                             diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator,
                       [from, to](at::Tensor& x, at::Generator& g) { at::cpu::uniform_(x, from, to, g); });
}

diopiError_t diopiNormalInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double mean, double std,
                            diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator,
                       [mean, std](at::Tensor& x, at::Generator& g) { at::cpu::normal_(x, mean, std, g); });
}

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
            at::cpu::bernoulli_(noise, 1 - p, g);
        });
    });
    if (error != diopiSuccess) return error;
    return LAUNCH(ctx, name, [o, m, x, noise, p]() mutable {
        at::cpu::ne_out(m, noise, at::Scalar(0));
        if (p < 1) at::cpu::div_(noise, at::native::wrapped_scalar_tensor(1 - p));
        at::cpu::mul_out(o, x, noise);
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

// ---- integers and permutations ----

// `to` NULL: up to the largest number that the dtype counts to without gaps.
diopiError_t diopiRandomInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, int64_t from, const int64_t* to,
                            diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator, [from, end = optional_number(to)](at::Tensor& x, at::Generator& g) {
        // beyond, ATen's search for the next number of a float never ends
        TORCH_CHECK(from < std::numeric_limits<int64_t>::max(), "there is no integer above ", from);
        at::cpu::random_(x, from, end, g);
    });
}

diopiError_t diopiRandperm(diopiContextHandle_t ctx, diopiTensorHandle_t out, int64_t n, diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, out, generator, [n](at::Tensor& o, at::Generator& g) {
        check_shape(o, {n});
        at::cpu::randperm_out(o, n, g);
    });
}

// ---- zeros and ones ----

diopiError_t diopiBernoulli(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor chances = view(input);
        check_shape(o, chances.sizes());
        at::cpu::bernoulli_(o, chances, g);
    });
}

// The tensor's own values are the probabilities.
diopiError_t diopiBernoulliInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor x = view(inout);
        at::cpu::bernoulli_(x, x.clone(), g);
    });
}

diopiError_t diopiBernoulliScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, double p, diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, out, generator, [p](at::Tensor& o, at::Generator& g) { at::cpu::bernoulli_(o, p, g); });
}

// ---- normal distributions ----

diopiError_t diopiNormal(diopiContextHandle_t ctx, diopiTensorHandle_t out, double mean, double std, diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, out, generator, [mean, std](at::Tensor& o, at::Generator& g) { at::cpu::normal_(o, mean, std, g); });
}

diopiError_t diopiNormalTensorScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t mean, double std,
                                     diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor means = view(mean);
        check_shape(o, means.sizes());
        at::cpu::normal_out(o, means, std, g);
    });
}

diopiError_t diopiNormalScalarTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, double mean, diopiConstTensorHandle_t std,
                                     diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor deviations = view(std);
        check_shape(o, deviations.sizes());
        at::cpu::normal_out(o, mean, deviations, g);
    });
}

diopiError_t diopiNormalTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t mean,
                               diopiConstTensorHandle_t std, diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor means = view(mean), deviations = view(std);
        check_shape(o, at::infer_size_dimvector(means.sizes(), deviations.sizes()));
        at::cpu::normal_out(o, means, deviations, g);
    });
}

// ---- picks ----

diopiError_t diopiMultinomial(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t num_samples,
                              bool replacement, diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor weights = view(input);
        TORCH_CHECK(weights.dim() == 1 || weights.dim() == 2, "the weights must have 1 or 2 dimensions, have ", weights.dim());
        Dims sizes(weights.sizes().begin(), weights.sizes().end());
        sizes.back() = num_samples;
        check_shape(o, sizes);  // before anything of that size is made
        o.copy_(at::cpu::multinomial(weights, num_samples, replacement, g));
    });
}
