// Data movement and selection: elements are moved, never changed.
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/embedding_dense_backward_cpu_dispatch.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/flip_cpu_dispatch.h>
#include <ATen/ops/gather_cpu_dispatch.h>
#include <ATen/ops/index_select_cpu_dispatch.h>
#include <ATen/ops/masked_fill_cpu_dispatch.h>
#include <ATen/ops/sort_cpu_dispatch.h>
#include <ATen/ops/topk_cpu_dispatch.h>
#include <ATen/ops/tril_cpu_dispatch.h>
#include <ATen/ops/triu_cpu_dispatch.h>
#include <ATen/ops/where_cpu_dispatch.h>
#include <ATen/ops/zero_cpu_dispatch.h>

#include "fast.h"
#include "kernel.h"
#include "reordered.h"

using namespace dipu_host;

diopiError_t diopiFill(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* value) {
    if (const auto number = flat_scalar(value)) {
        if (auto done = flat(ctx, __func__, [v = *number] { return v; }, input)) return *done;
    }
    return LAUNCH(ctx, __func__, [x = view(input), v = scalar(value)]() mutable { at::cpu::fill_(x, v); });
}

diopiError_t diopiZeroInp(diopiContextHandle_t ctx, diopiTensorHandle_t self) {
    if (auto done = flat(ctx, __func__, [] { return 0.0f; }, self)) return *done;
    return LAUNCH(ctx, __func__, [x = view(self)]() mutable { at::cpu::zero_(x); });
}

diopiError_t diopiCopyInp(diopiContextHandle_t ctx, diopiConstTensorHandle_t src, diopiTensorHandle_t dest) {
    return LAUNCH(ctx, __func__, [from = view(src), to = view(dest)]() mutable { at::native::copy_(to, from); });
}

diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t* tensors, int64_t num_inputs,
                      int64_t dim) {
    return LAUNCH(ctx, __func__, [o = view(out), parts = views(tensors, num_inputs), dim]() mutable {
        at::cpu::cat_out(o, at::ITensorListRef(parts), dim);
    });
}

diopiError_t diopiWhere(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t condition,
                        diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    return LAUNCH(ctx, __func__, [o = view(out), c = view(condition), x = view(input), y = view(other)]() mutable {
        at::cpu::where_out(o, c, x, y);
    });
}

diopiError_t diopiMaskedFillScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                   diopiConstTensorHandle_t mask, const diopiScalar_t* value) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), m = view(mask), v = scalar(value)]() mutable {
        at::native::copy_(o, x);
        at::cpu::masked_fill_(o, m, v);
    });
}

diopiError_t diopiMaskedFillInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t mask,
                                      const diopiScalar_t* value) {
    return LAUNCH(ctx, __func__, [x = view(input), m = view(mask), v = scalar(value)]() mutable { at::cpu::masked_fill_(x, m, v); });
}

diopiError_t diopiIndexSelect(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                              diopiConstTensorHandle_t index) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), i = view(index), dim]() mutable { at::cpu::index_select_out(o, x, dim, i); });
}

diopiError_t diopiGather(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                         diopiConstTensorHandle_t index) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), i = view(index), dim]() mutable { at::cpu::gather_out(o, x, dim, i); });
}

diopiError_t diopiEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t indices, int64_t padding_idx, bool scale_grad_byfreq, bool sparse) {
    return LAUNCH(ctx, __func__, [o = view(out), w = view(weight), i = view(indices)]() mutable {
        const auto rows = i.reshape({-1});
        if (!o.is_contiguous()) return void(o.copy_(at::cpu::index_select(w, 0, rows).view(o.sizes())));
        auto flat_out = o.view({rows.numel(), w.size(1)});
        at::cpu::index_select_out(flat_out, w, 0, rows);
    });
}

diopiError_t diopiEmbeddingBackward(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t grad,
                                    diopiConstTensorHandle_t indices, int64_t num_weights, int64_t padding_idx,
                                    bool scale_grad_byfreq, bool sparse) {
    return LAUNCH(ctx, __func__, [o = view(out), g = view(grad), i = view(indices), num_weights, padding_idx, scale_grad_byfreq,
                   split = reordered()]() mutable {
                      if (split) return split_sums::embedding_backward(o, g, i, padding_idx, scale_grad_byfreq);
                      o.copy_(at::cpu::embedding_dense_backward(g, i, num_weights, padding_idx, scale_grad_byfreq));
                  });
}

diopiError_t diopiTril(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t diagonal) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), diagonal]() mutable { at::cpu::tril_out(o, x, diagonal); });
}

diopiError_t diopiTriu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t diagonal) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), diagonal]() mutable { at::cpu::triu_out(o, x, diagonal); });
}

diopiError_t diopiSort(diopiContextHandle_t ctx, diopiTensorHandle_t values, diopiTensorHandle_t indices,
                       diopiConstTensorHandle_t input, int64_t dim, bool descending, const bool* pStable) {
    const auto stable = pStable ? std::optional<bool>(*pStable) : std::nullopt;
    return LAUNCH(ctx, __func__, [v = view(values), i = view(indices), x = view(input), dim, descending, stable]() mutable {
        at::cpu::sort_out(v, i, x, stable, dim, descending);
    });
}

diopiError_t diopiTopk(diopiContextHandle_t ctx, diopiTensorHandle_t values, diopiTensorHandle_t indices,
                       diopiConstTensorHandle_t input, int64_t k, int64_t dim, bool largest, bool sorted) {
    return LAUNCH(ctx, __func__, [v = view(values), i = view(indices), x = view(input), k, dim, largest, sorted]() mutable {
        at::cpu::topk_out(v, i, x, k, dim, largest, sorted);
    });
}

diopiError_t diopiFlip(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dims) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), d = dipu_host::dims(dims)]() mutable { o.copy_(at::cpu::flip(x, d)); });
}
