// Random numbers: initial weights, given distributions, permutations and picks.
#include "chip.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include KERNELS(bernoulli)
#include KERNELS(multinomial)
#include KERNELS(normal)
#include KERNELS(random)
#include KERNELS(randperm)
#include KERNELS(uniform)

#include <limits>

#include "draw.h"
#include "kernel.h"
#include "results.h"

using namespace dipu_vendor;

diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double from, double to,
                             diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator,
                       [from, to](at::Tensor& x, at::Generator& g) { kernels::uniform_(x, from, to, g); });
}

diopiError_t diopiNormalInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double mean, double std,
                            diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator,
                       [mean, std](at::Tensor& x, at::Generator& g) { kernels::normal_(x, mean, std, g); });
}

// ---- integers and permutations ----

// `to` NULL: up to the largest number that the dtype counts to without gaps.
diopiError_t diopiRandomInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, int64_t from, const int64_t* to,
                            diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator, [from, end = optional_number(to)](at::Tensor& x, at::Generator& g) {
        // beyond, ATen's search for the next number of a float never ends
        TORCH_CHECK(from < std::numeric_limits<int64_t>::max(), "there is no integer above ", from);
        kernels::random_(x, from, end, g);
    });
}

diopiError_t diopiRandperm(diopiContextHandle_t ctx, diopiTensorHandle_t out, int64_t n, diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, out, generator, [n](at::Tensor& o, at::Generator& g) {
        check_shape(o, {n});
        kernels::randperm_out(o, n, g);
    });
}

// ---- zeros and ones ----

diopiError_t diopiBernoulli(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor chances = view(input);
        check_shape(o, chances.sizes());
        kernels::bernoulli_(o, chances, g);
    });
}

// The tensor's own values are the probabilities.
diopiError_t diopiBernoulliInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor x = view(inout);
        kernels::bernoulli_(x, x.clone(), g);
    });
}

diopiError_t diopiBernoulliScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, double p, diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, out, generator, [p](at::Tensor& o, at::Generator& g) { kernels::bernoulli_(o, p, g); });
}

// ---- normal distributions ----

diopiError_t diopiNormal(diopiContextHandle_t ctx, diopiTensorHandle_t out, double mean, double std, diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, out, generator, [mean, std](at::Tensor& o, at::Generator& g) { kernels::normal_(o, mean, std, g); });
}

diopiError_t diopiNormalTensorScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t mean, double std,
                                     diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor means = view(mean);
        check_shape(o, means.sizes());
        kernels::normal_out(o, means, std, g);
    });
}

diopiError_t diopiNormalScalarTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, double mean, diopiConstTensorHandle_t std,
                                     diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor deviations = view(std);
        check_shape(o, deviations.sizes());
        kernels::normal_out(o, mean, deviations, g);
    });
}

diopiError_t diopiNormalTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t mean,
                               diopiConstTensorHandle_t std, diopiGeneratorHandle_t generator) {
    return draw_from_values(ctx, __func__, generator, [&](at::Generator& g) {
        at::Tensor o = view(out);
        const at::Tensor means = view(mean), deviations = view(std);
        check_shape(o, at::infer_size_dimvector(means.sizes(), deviations.sizes()));
        kernels::normal_out(o, means, deviations, g);
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
        o.copy_(kernels::multinomial(weights, num_samples, replacement, g));
    });
}
