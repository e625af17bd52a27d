// Selection by mask and by order.
#include "chip.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include KERNELS(_unique2)
#include <ATen/ops/copy_native.h>
#include KERNELS(masked_fill)
#include KERNELS(masked_scatter)
#include KERNELS(masked_select)
#include KERNELS(nonzero)
#include KERNELS(scatter)
#include KERNELS(sort)
#include KERNELS(topk)
#include KERNELS(unique_dim)
#include KERNELS(where)

#include "results.h"
#include "kernel.h"

using namespace dipu_vendor;

// ---- by mask ----

namespace {

// The input in the shape that it and the mask have together.
void copy_broadcast(at::Tensor& out, const at::Tensor& input, const at::Tensor& mask) {
    check_shape(out, at::infer_size_dimvector(input.sizes(), mask.sizes()));
    at::native::copy_(out, input);
}

}  // namespace

diopiError_t diopiWhere(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t condition,
                        diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& c, at::Tensor& x, at::Tensor& y) { kernels::where_out(o, c, x, y); }, out,
               condition, input, other);
}

diopiError_t diopiMaskedFillScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                   diopiConstTensorHandle_t mask, const diopiScalar_t* value) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& m, at::Scalar& v) {
        copy_broadcast(o, x, m);
        kernels::masked_fill_(o, m, v);
    }, out, input, mask, value);
}

diopiError_t diopiMaskedFillInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t mask,
                                      const diopiScalar_t* value) {
    return run(ctx, __func__, [](at::Tensor& x, at::Tensor& m, at::Scalar& v) { kernels::masked_fill_(x, m, v); }, input, mask, value);
}

diopiError_t diopiMaskedFill(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiConstTensorHandle_t mask, diopiConstTensorHandle_t value) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& m, at::Tensor& v) {
        copy_broadcast(o, x, m);
        kernels::masked_fill_(o, m, v);
    }, out, input, mask, value);
}

diopiError_t diopiMaskedFillInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t mask,
                                diopiConstTensorHandle_t value) {
    return run(ctx, __func__, [](at::Tensor& x, at::Tensor& m, at::Tensor& v) { kernels::masked_fill_(x, m, v); }, input, mask, value);
}

diopiError_t diopiMaskedScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                diopiConstTensorHandle_t mask, diopiConstTensorHandle_t source) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& m, at::Tensor& s) {
        copy_broadcast(o, x, m);
        kernels::masked_scatter_(o, m, s);
    }, out, input, mask, source);
}

diopiError_t diopiMaskedSelect(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input,
                               diopiConstTensorHandle_t mask) {
    return run_now(ctx, __func__, [&] {
        check_pointer(out);
        *out = require_like(ctx, kernels::masked_select(view(input), view(mask)));
    });
}

diopiError_t diopiMaskedSelectBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                       diopiConstTensorHandle_t input, diopiConstTensorHandle_t mask) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x, at::Tensor& m) {
        check_shape(o, x.sizes());
        const auto count = m.expand(o.sizes()).sum().item<int64_t>();
        TORCH_CHECK(g.numel() == count, "a gradient of ", g.numel(), " elements does not fit a mask that selects ", count);
        o.zero_();
        kernels::masked_scatter_(o, m, g);
    }, grad_input, grad_output, input, mask);
}

diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input) {
    return run_now(ctx, __func__, [&] {
        check_pointer(out);
        *out = require_like(ctx, kernels::nonzero(view(input)));
    });
}

// ---- by order ----

diopiError_t diopiSort(diopiContextHandle_t ctx, diopiTensorHandle_t values, diopiTensorHandle_t indices,
                       diopiConstTensorHandle_t input, int64_t dim, bool descending, const bool* pStable) {
    return run(ctx, __func__, [](at::Tensor& v, at::Tensor& i, at::Tensor& x, int64_t d, bool down, std::optional<bool> stable) {
        kernels::sort_out(v, i, x, stable, d, down);
    }, values, indices, input, dim, descending, pStable);
}

diopiError_t diopiSortBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                               int64_t dim, diopiConstTensorHandle_t indices, diopiSize_t sizes, bool keepdim) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, int64_t d, at::Tensor& i, Dims& shape, bool kept) {
        check_shape(o, shape);
        o.zero_();
        // without keepdim `dim` was reduced away
        const bool reduced = !kept && !shape.empty();
        kernels::scatter_(o, d, reduced ? i.unsqueeze(d) : i, reduced ? g.unsqueeze(d) : g);
    }, grad_input, grad_output, dim, indices, sizes, keepdim);
}

diopiError_t diopiArgsort(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, bool stable,
                          const int64_t* dim, bool descending) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, bool steady, std::optional<int64_t> d, bool down) {
        write(o, std::get<1>(kernels::sort(x, steady, d.value_or(-1), down)));
    }, out, input, stable, dim, descending);
}

diopiError_t diopiTopk(diopiContextHandle_t ctx, diopiTensorHandle_t values, diopiTensorHandle_t indices,
                       diopiConstTensorHandle_t input, int64_t k, int64_t dim, bool largest, bool sorted) {
    return run(ctx, __func__, [](at::Tensor& v, at::Tensor& i, at::Tensor& x, int64_t count, int64_t d, bool most, bool ordered) {
        kernels::topk_out(v, i, x, count, d, most, ordered);
    }, values, indices, input, k, dim, largest, sorted);
}

// `indices` says for every element (of `dim`, for every slice) which of the different values it is; it may be NULL.
diopiError_t diopiUnique(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input, const int64_t* dim,
                         bool sorted, bool return_counts, diopiTensorHandle_t indices, diopiTensorHandle_t* counts) {
    return run_now(ctx, __func__, [&] {
        check_pointer(out);
        if (return_counts) check_pointer(counts);
        const at::Tensor x = view(input);
        const bool inverse = indices != nullptr;
        const auto [values, inverse_indices, numbers] = dim ? kernels::unique_dim(x, *dim, sorted, inverse, return_counts)
                                                   : kernels::_unique2(x, sorted, inverse, return_counts);
        if (inverse) {
            at::Tensor to = view(indices);
            write(to, inverse_indices);
        }
        *out = require_like(ctx, values);
        if (return_counts) *counts = require_like(ctx, numbers);
    });
}
