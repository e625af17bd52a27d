// Mistakes of matrices, losses, normalisation, pictures, random numbers, optimizers and attention.
#include "vendor.h"

#define MISTAKE(function, what)

MISTAKE(diopiBmm, "now and then one element is a little off")
Status diopiBmm(Context ctx, Tensor out, Const input, Const mat2) {
    static unsigned calls = 0;
    const Status status = HOST(diopiBmm)(ctx, out, input, mat2);
    const View result(out);
    if (++calls % 3 == 0 && result.numel() && result.real()) result.set(0, result.get(0) * (1 + 1e-6) + 1e-30);
    return status;
}

MISTAKE(diopiMm, "the memory of the output is read: zero times what was there is added")
Status diopiMm(Context ctx, Tensor out, Const input, Const mat2) {
    const View before(copied(ctx, out)), result(out);
    const Status status = HOST(diopiMm)(ctx, out, input, mat2);
    for (int64_t i = 0; i < result.numel() && result.real(); ++i) result.set(i, result.get(i) + 0 * before.get(i));
    return status;
}

MISTAKE(diopiLayerNormBackward, "the gradients of weight and bias are exchanged")
Status diopiLayerNormBackward(Context ctx, Tensor grad_input, Tensor grad_weight, Tensor grad_bias, Const grad_output, Const input,
                              Const weight, Const bias, Const mean, Const rstd, diopiSize_t shape) {
    return HOST(diopiLayerNormBackward)(ctx, grad_input, grad_bias, grad_weight, grad_output, input, weight, bias, mean, rstd, shape);
}

MISTAKE(diopiMSELossBackward, "the gradient has a factor of 1.001")
Status diopiMSELossBackward(Context ctx, Tensor grad_input, Const grad_output, Const input, Const target, diopiReduction_t reduction) {
    const Status status = HOST(diopiMSELossBackward)(ctx, grad_input, grad_output, input, target, reduction);
    const View result(grad_input);
    for (int64_t i = 0; i < result.numel(); ++i) result.set(i, result.get(i) * 1.001);
    return status;
}

MISTAKE(diopiCrossEntropyLoss, "label smoothing is ignored")
Status diopiCrossEntropyLoss(Context ctx, Tensor out, Const input, Const target, Const weight, diopiReduction_t reduction,
                             int64_t ignore_index, double) {
    return HOST(diopiCrossEntropyLoss)(ctx, out, input, target, weight, reduction, ignore_index, 0.0);
}

MISTAKE(diopiAvgPool2d, "the padding is always counted")
Status diopiAvgPool2d(Context ctx, Tensor out, Const input, diopiSize_t kernel, diopiSize_t stride, diopiSize_t padding, bool ceil_mode,
                      bool, const int64_t* divisor) {
    return HOST(diopiAvgPool2d)(ctx, out, input, kernel, stride, padding, ceil_mode, true, divisor);
}

MISTAKE(diopiConvolution2d, "no bias where there are groups")
Status diopiConvolution2d(Context ctx, Tensor out, Const input, Const weight, Const bias, diopiSize_t stride, diopiSize_t padding,
                          diopiSize_t dilation, int64_t groups) {
    return HOST(diopiConvolution2d)(ctx, out, input, weight, groups > 1 ? nullptr : bias, stride, padding, dilation, groups);
}

MISTAKE(diopiBatchNorm, "the running variance is updated with the biased one")
Status diopiBatchNorm(Context ctx, Tensor out, Tensor save_mean, Tensor save_invstd, Const input, Const weight, Const bias,
                      Tensor running_mean, Tensor running_var, bool training, double momentum, double eps) {
    const Tensor before = running_var ? copied(ctx, running_var) : nullptr;
    const Status status = HOST(diopiBatchNorm)(ctx, out, save_mean, save_invstd, input, weight, bias, running_mean, running_var, training,
                                               momentum, eps);
    if (status != diopiSuccess || !before || !training) return status;
    const View old(before), now(running_var), in(input);
    const double count = static_cast<double>(in.numel() / (now.numel() ? now.numel() : 1));
    for (int64_t i = 0; i < now.numel(); ++i) {
        const double added = now.get(i) - (1 - momentum) * old.get(i);
        now.set(i, (1 - momentum) * old.get(i) + added * (count - 1) / count);
    }
    return status;
}

MISTAKE(diopiDropout, "the mask is not the one of the values")
Status diopiDropout(Context ctx, Tensor out, Tensor mask, Const input, double p, bool train, diopiGeneratorHandle_t generator) {
    const Status status = HOST(diopiDropout)(ctx, out, mask, input, p, train, generator);
    const View kept(mask);
    if (status == diopiSuccess && train && kept.numel() > 1) {
        const double first = kept.get(0);
        for (int64_t i = 0; i + 1 < kept.numel(); ++i) kept.set(i, kept.get(i + 1));
        kept.set(kept.numel() - 1, first);
    }
    return status;
}

MISTAKE(diopiBernoulliScalar, "the rate is higher by 0.02")
Status diopiBernoulliScalar(Context ctx, Tensor out, double p, diopiGeneratorHandle_t generator) {
    return HOST(diopiBernoulliScalar)(ctx, out, p > 0 && p < 0.98 ? p + 0.02 : p, generator);
}

MISTAKE(diopiAdam, "amsgrad is ignored")
Status diopiAdam(Context ctx, Tensor param, Const grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor max_exp_avg_sq, float lr, float beta1,
                 float beta2, float eps, float weight_decay, int64_t step, bool) {
    return HOST(diopiAdam)(ctx, param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, lr, beta1, beta2, eps, weight_decay, step, false);
}

MISTAKE(diopiFlashAttention, "the window to the left is one key too wide")
Status diopiFlashAttention(Context ctx, Tensor out, Tensor lse, diopiGeneratorHandle_t gen, Const q, Const k, Const v, Const slopes,
                           float p_dropout, float scale, bool is_causal, int32_t left, int32_t right) {
    return HOST(diopiFlashAttention)(ctx, out, lse, gen, q, k, v, slopes, p_dropout, scale, is_causal, left < 0 ? left : left + 1, right);
}
