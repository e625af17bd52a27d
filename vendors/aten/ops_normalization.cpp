// Normalisations.
#include "chip.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include KERNELS(native_batch_norm_backward)
#include KERNELS(native_batch_norm)
#include KERNELS(native_group_norm_backward)
#include KERNELS(native_group_norm)
#include KERNELS(native_layer_norm_backward)
#include KERNELS(native_layer_norm)

#include <array>

#include "kernel.h"
#include "reordered.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

static Tensor or_undefined(const OptionalTensor& tensor) { return tensor ? *tensor : Tensor(); }

// Weights and statistics as ATen's kernels read them: one element after the other, whatever the strides say.
static OptionalTensor dense(const OptionalTensor& tensor) { return tensor ? OptionalTensor(tensor->contiguous()) : std::nullopt; }

// ATen adds up halves as halves in its backward kernels, and rounds running statistics more than once; here they go through float32.
static Tensor wide_dense(const OptionalTensor& tensor) { return tensor ? for_sums(*tensor).contiguous() : Tensor(); }

static std::array<bool, 3> wanted(const OptionalTensor& a, const OptionalTensor& b, const OptionalTensor& c) {
    return {a.has_value(), b.has_value(), c.has_value()};
}

// ---- rows: the last dimensions of a tensor ----

static int64_t check_rows(const Tensor& x, at::IntArrayRef shape) {
    const auto normalized = static_cast<int64_t>(shape.size());
    TORCH_CHECK(normalized > 0 && normalized <= x.dim() && x.sizes().slice(x.dim() - normalized) == shape, "normalized_shape ", shape,
                " is not the end of the input's shape ", x.sizes());
    return c10::multiply_integers(x.sizes().slice(0, x.dim() - normalized));
}

static void layer_norm(Tensor& out, OptionalTensor& mean, OptionalTensor& rstd, const Tensor& x, const OptionalTensor& weight,
                       const OptionalTensor& bias, at::IntArrayRef shape, double eps) {
    const int64_t rows = check_rows(x, shape), row = c10::multiply_integers(shape);
    check_count(weight, row, "the weight"), check_count(bias, row, "the bias");
    if (reordered() && x.numel() > 0) {
        Tensor split_mean = or_undefined(mean), split_rstd = or_undefined(rstd);
        check_count(mean, rows, "the mean"), check_count(rstd, rows, "the inverse deviation");
        check_same_shape(out, x, "the output and the input");
        return split_sums::layer_norm(out, split_mean, split_rstd, x, weight, bias, static_cast<int64_t>(shape.size()), eps);
    }
    const auto [y, m, r] = kernels::native_layer_norm(x, shape, dense(weight), dense(bias), eps);
    write(out, y), write(mean, m), write(rstd, r);
}

static void layer_norm_backward(OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, const Tensor& g, const Tensor& x,
                                const OptionalTensor& weight, const OptionalTensor& bias, const Tensor& mean, const Tensor& rstd,
                                at::IntArrayRef shape) {
    const int64_t rows = check_rows(x, shape), row = c10::multiply_integers(shape);
    check_same_shape(g, x, "the gradient and the input");
    check_count(mean, rows, "the mean"), check_count(rstd, rows, "the inverse deviation");
    check_count(weight, row, "the weight"), check_count(bias, row, "the bias");
    if (reordered() && x.numel() > 0) {
        Tensor dx = or_undefined(gx), dw = or_undefined(gw), db = or_undefined(gb);
        if (gx) check_same_shape(*gx, x, "the gradient of the input and the input");
        check_count(gw, row, "the gradient of the weight"), check_count(gb, row, "the gradient of the bias");
        return split_sums::layer_norm_backward(dx, dw, db, g, x, weight, mean, rstd, static_cast<int64_t>(shape.size()));
    }
    const auto [dx, dw, db] = kernels::native_layer_norm_backward(for_sums(g), for_sums(x), shape, wide_dense(mean), wide_dense(rstd),
                                                                  wide_dense(weight), wide_dense(bias), wanted(gx, gw, gb));
    write(gx, dx), write(gw, dw), write(gb, db);
}

// The shape from an axis on.
static at::IntArrayRef from_axis(const Tensor& x, int64_t axis) {
    TORCH_CHECK(axis >= -x.dim() && axis < x.dim(), "the first normalised axis is ", axis, ", but the input has ", x.dim(), " dimensions");
    return x.sizes().slice(static_cast<size_t>(axis < 0 ? axis + x.dim() : axis));
}

diopiError_t diopiLayerNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean,
                            diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, diopiSize_t normalized_shape, double eps) {
    const auto body = [](Tensor& o, OptionalTensor& mean, OptionalTensor& rstd, Tensor& x, OptionalTensor& w, OptionalTensor& b,
                         Dims& shape, double eps) { layer_norm(o, mean, rstd, x, w, b, shape, eps); };
    return run(ctx, __func__, body, out, maybe(save_mean), maybe(save_invstd), input, maybe(weight), maybe(bias), normalized_shape, eps);
}

diopiError_t diopiLayerNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t bias, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t rstd,
                                    diopiSize_t normalized_shape) {
    const auto body = [](OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, Tensor& g, Tensor& x, OptionalTensor& w,
                         OptionalTensor& b, Tensor& mean, Tensor& rstd,
                         Dims& shape) { layer_norm_backward(gx, gw, gb, g, x, w, b, mean, rstd, shape); };
    return run(ctx, __func__, body, maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, maybe(weight), maybe(bias),
               mean, rstd, normalized_shape);
}

diopiError_t diopiLayerNormGB(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t running_mean,
                              diopiTensorHandle_t running_var, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                              diopiConstTensorHandle_t bias, const double eps, const int64_t begin_norm_axis) {
    const auto body = [](Tensor& o, OptionalTensor& mean, OptionalTensor& rstd, Tensor& x, OptionalTensor& w, OptionalTensor& b,
                         double eps, int64_t axis) { layer_norm(o, mean, rstd, x, w, b, from_axis(x, axis), eps); };
    return run(ctx, __func__, body, out, maybe(running_mean), maybe(running_var), input, maybe(weight), maybe(bias), eps, begin_norm_axis);
}

diopiError_t diopiLayerNormGBBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                      diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias,
                                      diopiConstTensorHandle_t running_mean, diopiConstTensorHandle_t running_std,
                                      const int64_t begin_norm_axis) {
    const auto body = [](OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, Tensor& g, Tensor& x, OptionalTensor& w,
                         OptionalTensor& b, Tensor& mean, Tensor& rstd,
                         int64_t axis) { layer_norm_backward(gx, gw, gb, g, x, w, b, mean, rstd, from_axis(x, axis)); };
    return run(ctx, __func__, body, maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, maybe(weight), maybe(bias),
               running_mean, running_std, begin_norm_axis);
}

// ---- groups of channels ----

struct Planes {
    int64_t samples, channels, pixels;
    explicit Planes(const Tensor& x) : samples(0), channels(0), pixels(1) {
        TORCH_CHECK(x.dim() >= 2, "the input needs samples and channels, but has ", x.dim(), " dimensions");
        samples = x.size(0), channels = x.size(1);
        for (int64_t i = 2; i < x.dim(); ++i) pixels *= x.size(i);
    }
};

static void check_groups(int64_t groups, int64_t channels) {
    TORCH_CHECK(groups > 0 && channels % groups == 0, channels, " channels cannot be cut into ", groups, " groups");
}

diopiError_t diopiGroupNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean,
                            diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, int64_t num_groups, double eps) {
    const auto body = [](Tensor& o, Tensor& mean, Tensor& rstd, Tensor& x, OptionalTensor& w, OptionalTensor& b, int64_t groups,
                         double eps) {
        const Planes planes(x);
        check_groups(groups, planes.channels);
        check_count(w, planes.channels, "the weight"), check_count(b, planes.channels, "the bias");
        if (reordered() && x.numel() > 0) {
            check_same_shape(o, x, "the output and the input");
            check_count(mean, planes.samples * groups, "the mean"), check_count(rstd, planes.samples * groups, "the inverse deviation");
            return split_sums::group_norm(o, mean, rstd, x, w, b, groups, eps);
        }
        const auto [y, m, r] =
            kernels::native_group_norm(x.contiguous(), dense(w), dense(b), planes.samples, planes.channels, planes.pixels, groups, eps);
        write(o, y), write(mean, m), write(rstd, r);
    };
    return run(ctx, __func__, body, out, save_mean, save_invstd, input, maybe(weight), maybe(bias), num_groups, eps);
}

diopiError_t diopiGroupNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiConstTensorHandle_t mean,
                                    diopiConstTensorHandle_t rstd, int64_t num_groups) {
    const auto body = [](OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, Tensor& g, Tensor& x, OptionalTensor& w, Tensor& mean,
                         Tensor& rstd, int64_t groups) {
        const Planes planes(x);
        check_groups(groups, planes.channels);
        check_same_shape(g, x, "the gradient and the input");
        check_count(w, planes.channels, "the weight");
        check_count(mean, planes.samples * groups, "the mean"), check_count(rstd, planes.samples * groups, "the inverse deviation");
        const auto [dx, dw, db] =
            kernels::native_group_norm_backward(g.contiguous(), x.contiguous(), mean.contiguous(), rstd.contiguous(), dense(w),
                                                planes.samples, planes.channels, planes.pixels, groups, wanted(gx, gw, gb));
        write(gx, dx), write(gw, dw), write(gb, db);
    };
    return run(ctx, __func__, body, maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, maybe(weight), mean, rstd,
               num_groups);
}

// ---- channels of a batch ----

static void batch_norm(Tensor& o, Tensor& mean, Tensor& invstd, const Tensor& x, const OptionalTensor& w, const OptionalTensor& b,
                       const OptionalTensor& rm, const OptionalTensor& rv, bool training, double momentum, double eps) {
    const int64_t channels = Planes(x).channels;
    check_count(w, channels, "the weight"), check_count(b, channels, "the bias");
    check_count(rm, channels, "the running mean"), check_count(rv, channels, "the running variance");
    TORCH_CHECK(training || (rm && rv), "without running statistics there is nothing to evaluate with");
    if (training && mean.is_contiguous() && invstd.is_contiguous()) {
        check_same_shape(o, x, "the output and the input");
        check_count(mean, channels, "the saved mean"), check_count(invstd, channels, "the saved inverse deviation");
        if (reordered()) return split_sums::batch_norm(o, mean, invstd, x, w, b, or_undefined(rm), or_undefined(rv), momentum, eps);
        const auto type = x.scalar_type();
        const bool full = type == at::kFloat || type == at::kDouble;
        if (full && mean.scalar_type() == type && invstd.scalar_type() == type && o.scalar_type() == type && o.strides() == x.strides())
            return void(kernels::native_batch_norm_out(o, mean, invstd, x, w, b, or_undefined(rm), or_undefined(rv), true, momentum, eps));
    }
    const Tensor moved_mean = wide_dense(rm), moved_var = wide_dense(rv);
    const auto [y, m, s] =
        kernels::native_batch_norm(for_sums(x), wide_dense(w), wide_dense(b), moved_mean, moved_var, training, momentum, eps);
    write(o, y);
    if (!training) return;
    write(mean, m), write(invstd, s);
    if (rm) rm->copy_(moved_mean);
    if (rv) rv->copy_(moved_var);
}

diopiError_t diopiBatchNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean,
                            diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, diopiTensorHandle_t running_mean, diopiTensorHandle_t running_var,
                            bool training, double momentum, double eps) {
    const auto body = [](Tensor& o, Tensor& mean, Tensor& invstd, Tensor& x, OptionalTensor& w, OptionalTensor& b, OptionalTensor& rm,
                         OptionalTensor& rv, bool training, double momentum,
                         double eps) { batch_norm(o, mean, invstd, x, w, b, rm, rv, training, momentum, eps); };
    return run(ctx, __func__, body, out, save_mean, save_invstd, input, maybe(weight), maybe(bias), maybe(running_mean), maybe(running_var),
               training, momentum, eps);
}

static void batch_norm_backward(OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, const Tensor& g, const Tensor& x,
                                const OptionalTensor& w, const OptionalTensor& rm, const OptionalTensor& rv,
                                const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool training, double eps) {
    const int64_t channels = Planes(x).channels;
    check_same_shape(g, x, "the gradient and the input");
    check_count(w, channels, "the weight");
    check_count(rm, channels, "the running mean"), check_count(rv, channels, "the running variance");
    TORCH_CHECK(training ? save_mean && save_invstd : rm && rv, "the statistics of the forward pass are NULL");
    if (training) check_count(save_mean, channels, "the saved mean"), check_count(save_invstd, channels, "the saved inverse deviation");
    if (channels == 0) return;  // nothing to write; ATen would divide by the count
    if (reordered() && x.numel() > 0) {
        Tensor dx = or_undefined(gx), dw = or_undefined(gw), db = or_undefined(gb);
        if (gx) check_same_shape(*gx, x, "the gradient of the input and the input");
        check_count(gw, channels, "the gradient of the weight"), check_count(gb, channels, "the gradient of the bias");
        const Tensor mean = training ? *save_mean : *rm, invstd = training ? *save_invstd : upcast(*rv).add(eps).rsqrt();
        return split_sums::batch_norm_backward(dx, dw, db, g, x, w, mean, invstd, training);
    }
    const auto [dx, dw, db] = kernels::native_batch_norm_backward(for_sums(g), for_sums(x), wide_dense(w), wide_dense(rm), wide_dense(rv),
                                                                  wide_dense(save_mean), wide_dense(save_invstd), training, eps,
                                                                  wanted(gx, gw, gb));
    write(gx, dx), write(gw, dw), write(gb, db);
}

diopiError_t diopiBatchNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t running_mean, diopiConstTensorHandle_t running_var,
                                    diopiConstTensorHandle_t save_mean, diopiConstTensorHandle_t save_invstd, bool training,
                                    double eps) {
    const auto body = [](OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, Tensor& g, Tensor& x, OptionalTensor& w,
                         OptionalTensor& rm, OptionalTensor& rv, OptionalTensor& mean, OptionalTensor& invstd, bool training,
                         double eps) { batch_norm_backward(gx, gw, gb, g, x, w, rm, rv, mean, invstd, training, eps); };
    return run(ctx, __func__, body, maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, maybe(weight),
               maybe(running_mean), maybe(running_var), maybe(save_mean), maybe(save_invstd), training, eps);
}
