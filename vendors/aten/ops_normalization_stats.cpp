// Normalisations from their definition: those by instance, and the parts of synchronised batch normalisation, for which ATen's
// CPU has no kernel. Halves are computed in float32.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include "kernel.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// A vector over the channels in a shape that broadcasts against `x`.
static Tensor over_channels(const Tensor& vector, const Tensor& x, int64_t axis = 1) {
    check_count(vector, x.size(axis), "a vector over the channels");
    Dims sizes(x.dim(), 1);
    sizes[axis] = x.size(axis);
    return upcast(vector).reshape(sizes);
}

static Dims axes_but(const Tensor& x, int64_t axis, bool samples) {
    Dims axes;
    for (int64_t i = samples ? 0 : 1; i < x.dim(); ++i)
        if (i != axis) axes.push_back(i);
    return axes;
}

static Tensor summed(const Tensor& x, const Dims& axes) { return axes.empty() ? x : x.sum(axes); }
static Tensor averaged(const Tensor& x, const Dims& axes) { return axes.empty() ? x : x.mean(axes, /*keepdim=*/true); }

static Tensor with_channels(const Tensor& x) {
    TORCH_CHECK(x.dim() >= 2, "the input needs samples and channels, but has ", x.dim(), " dimensions");
    return upcast(x);
}

// ---- by instance ----

struct Instances {
    Tensor centred, inverse;  // normalised input; inverse deviation with the reduced dimensions kept
    Dims pixels, others;
    int64_t axis;

    Instances(const Tensor& input, int64_t channels, double eps) : axis(at::maybe_wrap_dim(channels, input.dim(), false)) {
        const Tensor x = upcast(input);
        pixels = axes_but(x, axis, /*samples=*/false), others = axes_but(x, axis, /*samples=*/true);
        const Tensor shifted = x - averaged(x, pixels);
        inverse = (averaged(shifted * shifted, pixels) + eps).rsqrt();
        centred = shifted * inverse;
    }
};

diopiError_t diopiInstanceNorm(diopiContextHandle_t ctx, diopiTensorHandle_t output, diopiConstTensorHandle_t input, const int64_t axis,
                               diopiConstTensorHandle_t scale, diopiConstTensorHandle_t bias, const double eps) {
    const auto body = [](Tensor& o, Tensor& x, int64_t axis, OptionalTensor& w, OptionalTensor& b, double eps) {
        const Instances instances(x, axis, eps);
        Tensor result = instances.centred;
        if (w) result = result * over_channels(*w, x, instances.axis);
        if (b) result = result + over_channels(*b, x, instances.axis);
        write(o, result);
    };
    return run(ctx, __func__, body, output, input, axis, maybe(scale), maybe(bias), eps);
}

diopiError_t diopiInstanceNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_scale,
                                       diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                       diopiConstTensorHandle_t input, diopiConstTensorHandle_t scale, diopiConstTensorHandle_t bias,
                                       const int64_t axis, const double eps) {
    const auto body = [](OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, Tensor& grad, Tensor& x, OptionalTensor& w,
                         int64_t axis, double eps) {
        check_same_shape(grad, x, "the gradient and the input");
        const Instances instances(x, axis, eps);
        const Tensor g = upcast(grad), scaled = w ? g * over_channels(*w, x, instances.axis) : g;
        const Tensor along = averaged(scaled * instances.centred, instances.pixels);
        write(gx, (scaled - averaged(scaled, instances.pixels) - instances.centred * along) * instances.inverse);
        if (gw) write(gw, summed(g * instances.centred, instances.others));
        if (gb) write(gb, summed(g, instances.others));
    };
    return run(ctx, __func__, body, maybe(grad_input), maybe(grad_scale), maybe(grad_bias), grad_output, input, maybe(scale), axis, eps);
}

// ---- synchronised batch normalisation ----

diopiError_t diopiBatchNormStats(diopiContextHandle_t ctx, diopiTensorHandle_t mean, diopiTensorHandle_t invstd,
                                 diopiConstTensorHandle_t input, double eps) {
    const auto body = [](Tensor& mean, Tensor& invstd, Tensor& input, double eps) {
        const Tensor x = with_channels(input);
        const Dims axes = axes_but(x, 1, true);
        const Tensor average = averaged(x, axes), shifted = x - average;
        write(mean, average.reshape(-1));
        write(invstd, (averaged(shifted * shifted, axes) + eps).rsqrt().reshape(-1));
    };
    return run(ctx, __func__, body, mean, invstd, input, eps);
}

// Statistics of two sets of elements joined one after the other: mean, sum of squared distances to it, count.
diopiError_t diopiBatchNormGatherStatsWithCounts(diopiContextHandle_t ctx, diopiTensorHandle_t mean, diopiTensorHandle_t invstd,
                                                 diopiConstTensorHandle_t input, diopiConstTensorHandle_t mean_all,
                                                 diopiConstTensorHandle_t invstd_all, diopiTensorHandle_t running_mean,
                                                 diopiTensorHandle_t running_var, float momentum, float eps,
                                                 diopiConstTensorHandle_t counts) {
    const auto body = [](Tensor& mean, Tensor& invstd, Tensor& means, Tensor& inverses, OptionalTensor& rm, OptionalTensor& rv,
                         float momentum, float eps, Tensor& counts) {
        TORCH_CHECK(means.dim() == 2 && means.size(0) > 0, "mean_all is [processes, channels], but has the shape ", means.sizes());
        check_same_shape(means, inverses, "mean_all and invstd_all");
        check_count(counts, means.size(0), "counts");
        const Tensor all = upcast(means), spreads = upcast(inverses).pow(-2) - static_cast<double>(eps);
        const Tensor each = upcast(counts).reshape(-1).to(all.scalar_type()).contiguous();
        Tensor joined = all[0], squares = spreads[0] * each[0], total = each[0];
        for (int64_t i = 1; i < all.size(0); ++i) {
            const Tensor count = total + each[i], step = all[i] - joined;
            squares = squares + spreads[i] * each[i] + step * step * (total * each[i] / count);
            joined = joined + step * (each[i] / count);
            total = count;
        }
        write(mean, joined), write(invstd, (squares / total + static_cast<double>(eps)).rsqrt());
        const auto follow = [&](OptionalTensor& running, const Tensor& now) {
            if (running) write(*running, upcast(*running) * (1 - static_cast<double>(momentum)) + now * static_cast<double>(momentum));
        };
        follow(rm, joined), follow(rv, squares / (total - 1));
    };
    return run(ctx, __func__, body, mean, invstd, mean_all, invstd_all, maybe(running_mean), maybe(running_var), momentum, eps, counts);
}

diopiError_t diopiBatchNormBackwardReduce(diopiContextHandle_t ctx, diopiTensorHandle_t sum_dy, diopiTensorHandle_t sum_dy_xmu,
                                          diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_out,
                                          diopiConstTensorHandle_t input, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
                                          diopiConstTensorHandle_t weight, bool input_g, bool weight_g, bool bias_g) {
    const auto body = [](OptionalTensor& sum, OptionalTensor& sum_centred, OptionalTensor& gw, OptionalTensor& gb, Tensor& grad,
                         Tensor& input, Tensor& mean, Tensor& invstd, bool input_g, bool weight_g, bool bias_g) {
        const Tensor x = with_channels(input), g = upcast(grad);
        check_same_shape(grad, input, "the gradient and the input");
        const Dims axes = axes_but(x, 1, true);
        const Tensor plain = summed(g, axes), centred = summed(g * (x - over_channels(mean, x)), axes);
        if (input_g) write(sum, plain), write(sum_centred, centred);
        if (weight_g) write(gw, centred * over_channels(invstd, x).reshape(-1));
        if (bias_g) write(gb, plain);
    };
    return run(ctx, __func__, body, maybe(sum_dy), maybe(sum_dy_xmu), maybe(grad_weight), maybe(grad_bias), grad_out, input, mean, invstd,
               input_g, weight_g, bias_g);
}

diopiError_t diopiBatchNormBackwardElemt(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_out,
                                         diopiConstTensorHandle_t input, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t invstd,
                                         diopiConstTensorHandle_t weight, diopiConstTensorHandle_t sum_dy,
                                         diopiConstTensorHandle_t sum_dy_xmu, diopiConstTensorHandle_t count) {
    const auto body = [](Tensor& o, Tensor& grad, Tensor& input, Tensor& mean, Tensor& invstd, OptionalTensor& w, Tensor& sum,
                         Tensor& sum_centred, Tensor& count) {
        const Tensor x = with_channels(input);
        check_same_shape(grad, input, "the gradient and the input");
        const Tensor total = count.sum().to(x.scalar_type()), inverse = over_channels(invstd, x);
        const Tensor along = over_channels(sum_centred, x) / total * inverse * inverse;
        const Tensor result = (upcast(grad) - over_channels(sum, x) / total - (x - over_channels(mean, x)) * along) * inverse;
        write(o, w ? result * over_channels(*w, x) : result);
    };
    return run(ctx, __func__, body, grad_input, grad_out, input, mean, invstd, maybe(weight), sum_dy, sum_dy_xmu, count);
}

diopiError_t diopiBatchNormElemt(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                 diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiConstTensorHandle_t mean,
                                 diopiConstTensorHandle_t invstd, float eps) {
    const auto body = [](Tensor& o, Tensor& input, OptionalTensor& w, OptionalTensor& b, Tensor& mean, Tensor& invstd) {
        const Tensor x = with_channels(input);
        Tensor result = (x - over_channels(mean, x)) * over_channels(invstd, x);
        if (w) result = result * over_channels(*w, x);
        write(o, b ? result + over_channels(*b, x) : result);
    };
    return run(ctx, __func__, body, out, input, maybe(weight), maybe(bias), mean, invstd);
}
