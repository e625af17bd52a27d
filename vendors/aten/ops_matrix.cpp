// Matrix products.
#include "chip.h"

#include <ATen/core/Tensor.h>
#include KERNELS(addmm)
#include KERNELS(baddbmm)
#include KERNELS(bmm)
#include KERNELS(mm)

#include "kernel.h"
#include "reordered.h"

using namespace dipu_vendor;

diopiError_t diopiMm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                     diopiConstTensorHandle_t mat2) {
    return LAUNCH(ctx, __func__, [o = view(out), a = view(input), b = view(mat2)]() mutable {
        if (reordered()) return split_sums::addmm(o, std::nullopt, a, b, 0, 1);
        kernels::mm_out(o, a, b);
    });
}

diopiError_t diopiBmm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                      diopiConstTensorHandle_t mat2) {
    return LAUNCH(ctx, __func__, [o = view(out), a = view(input), b = view(mat2)]() mutable {
        if (reordered()) return split_sums::addmm(o, std::nullopt, a, b, 0, 1);
        kernels::bmm_out(o, a, b);
    });
}

diopiError_t diopiAddmm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                        diopiConstTensorHandle_t mat1, diopiConstTensorHandle_t mat2, const diopiScalar_t* beta,
                        const diopiScalar_t* alpha) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), a = view(mat1), b = view(mat2), input_scale = scalar(beta),
                   product_scale = scalar(alpha)]() mutable {
                      if (reordered()) return split_sums::addmm(o, x, a, b, input_scale.toDouble(), product_scale.toDouble());
                      kernels::addmm_out(o, x, a, b, input_scale, product_scale);
                  });
}

diopiError_t diopiBaddbmm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t batch1, diopiConstTensorHandle_t batch2, double beta, double alpha) {
    return LAUNCH(ctx, __func__,
        [o = view(out), x = view(input), a = view(batch1), b = view(batch2), beta, alpha]() mutable {
            if (reordered()) return split_sums::addmm(o, x, a, b, beta, alpha);
            kernels::baddbmm_out(o, x, a, b, beta, alpha);
        });
}

diopiError_t diopiBaddbmmInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t batch1,
                             diopiConstTensorHandle_t batch2, double beta, double alpha) {
    return LAUNCH(ctx, __func__, [x = view(input), a = view(batch1), b = view(batch2), beta, alpha]() mutable {
                      if (reordered()) return split_sums::addmm(x, x, a, b, beta, alpha);
                      kernels::baddbmm_(x, a, b, beta, alpha);
                  });
}
