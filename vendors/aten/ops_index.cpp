// Selection by index: gathering, scattering, rows of a table. An index out of range is an error.
#include "chip.h"

#include <ATen/core/Tensor.h>
#include KERNELS(_index_put_impl)
#include <ATen/ops/aminmax.h>
#include KERNELS(embedding_dense_backward)
#include KERNELS(embedding_renorm)
#include <ATen/ops/full_like.h>
#include KERNELS(gather)
#include KERNELS(index_add)
#include KERNELS(index)
#include KERNELS(index_fill)
#include KERNELS(index_select)
#include <ATen/ops/one_hot.h>
#include KERNELS(scatter_add)
#include KERNELS(scatter)
#include KERNELS(scatter_reduce)

#include "results.h"
#include "kernel.h"
#include "reordered.h"

using namespace dipu_vendor;

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// An absent index takes the whole dimension.
Indices index_list(const std::vector<at::Tensor>& tensors) {
    Indices made;
    for (const auto& tensor : tensors) made.push_back(tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt);
    return made;
}

void check_range(const at::Tensor& indices, int64_t count) {
    if (!kKernelsNeedChecks || indices.numel() == 0) return;
    const auto [least, most] = at::aminmax(indices);
    const auto low = least.item<int64_t>(), high = most.item<int64_t>();
    TORCH_CHECK(low >= 0 && high < count, "indices from ", low, " to ", high, " do not lie within ", count, " rows");
}

void put(at::Tensor& x, const std::vector<at::Tensor>& indices, const at::Tensor& values, bool accumulate) {
    kernels::_index_put_impl_(x, index_list(indices), values, accumulate, /*unsafe=*/false);
}

}  // namespace

// ---- indices of several dimensions ----

diopiError_t diopiIndex(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input,
                        diopiConstTensorHandle_t* indices, int64_t nums) {
    return run_now(ctx, __func__, [&] {
        check_pointer(out);
        *out = require_like(ctx, kernels::index(view(input), index_list(argument(list(indices, nums)))));
    });
}

diopiError_t diopiIndexBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t zeros_like_input,
                                diopiConstTensorHandle_t* indices, int64_t nums, diopiConstTensorHandle_t grad_output) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& zeros, std::vector<at::Tensor>& i, at::Tensor& g) {
        write(o, zeros);
        put(o, i, g, /*accumulate=*/true);
    }, grad_input, diopiConstTensorHandle_t(zeros_like_input), list(indices, nums), grad_output);
}

diopiError_t diopiIndexPut(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                           diopiConstTensorHandle_t values, diopiConstTensorHandle_t* indices, int64_t indices_counts, bool accumulate) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& v, std::vector<at::Tensor>& i, bool add) {
        write(o, x);
        put(o, i, v, add);
    }, out, input, values, list(indices, indices_counts), accumulate);
}

diopiError_t diopiIndexPutInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t values,
                              diopiConstTensorHandle_t* indices, int64_t indices_counts, bool accumulate) {
    return run(ctx, __func__, [](at::Tensor& x, at::Tensor& v, std::vector<at::Tensor>& i, bool add) { put(x, i, v, add); }, input, values,
               list(indices, indices_counts), accumulate);
}

// ---- indices of one dimension ----

diopiError_t diopiIndexSelect(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                              diopiConstTensorHandle_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, at::Tensor& i) { kernels::index_select_out(o, x, d, i); }, out,
               input, dim, index);
}

diopiError_t diopiIndexSelectBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad,
                                      diopiSize_t input_sizes, int64_t dim, diopiConstTensorHandle_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, Dims& sizes, int64_t d, at::Tensor& i) {
        check_shape(o, sizes);
        check_range(i, o.dim() ? o.size(d) : 1);
        o.zero_();
        kernels::index_add_(o, d, i, g);
    }, grad_input, grad, input_sizes, dim, index);
}

diopiError_t diopiIndexFillScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                                  diopiConstTensorHandle_t index, const diopiScalar_t* value) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, at::Tensor& i, at::Scalar& v) {
        write(o, x);
        kernels::index_fill_(o, d, i.to(at::kLong), v);
    }, out, input, dim, index, value);
}

diopiError_t diopiIndexFill(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                            diopiConstTensorHandle_t index, diopiConstTensorHandle_t value) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, at::Tensor& i, at::Tensor& v) {
        write(o, x);
        kernels::index_fill_(o, d, i.to(at::kLong), v);
    }, out, input, dim, index, value);
}

diopiError_t diopiIndexFillInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
                                     const diopiScalar_t* value) {
    return run(ctx, __func__, [](at::Tensor& x, int64_t d, at::Tensor& i, at::Scalar& v) {
        kernels::index_fill_(x, d, i.to(at::kLong), v);
    }, input, dim, index, value);
}

diopiError_t diopiIndexFillInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index,
                               diopiConstTensorHandle_t value) {
    return run(ctx, __func__, [](at::Tensor& x, int64_t d, at::Tensor& i, at::Tensor& v) {
        kernels::index_fill_(x, d, i.to(at::kLong), v);
    }, input, dim, index, value);
}

// ---- one index for every element ----

diopiError_t diopiGather(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                         diopiConstTensorHandle_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, at::Tensor& i) { kernels::gather_out(o, x, d, i); }, out, input,
               dim, index);
}

diopiError_t diopiGatherBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                 diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x, int64_t d, at::Tensor& i) {
        check_shape(o, x.sizes());
        o.zero_();
        kernels::scatter_add_(o, d, i, g);
    }, grad_input, grad_output, input, dim, index);
}

namespace {

// torch warns that its scatter with `reduce` is old, which is no business of the caller's; the new one has no complex numbers.
class Silence : c10::WarningHandler {
    void process(const c10::Warning&) override {}
    c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// `reduce` is "" (write), "add" or "multiply".
void scatter(at::Tensor& x, int64_t dim, const at::Tensor& index, const at::Tensor& source, const std::string& reduce) {
    if (reduce.empty()) {
        kernels::scatter_(x, dim, index, source);
    } else if (reduce == "add") {
        kernels::scatter_add_(x, dim, index, source);
    } else {
        TORCH_CHECK(reduce == "multiply", "reduce is '", reduce, "'; known are '', 'add' and 'multiply'");
        if (x.is_complex()) {
            Silence scope;
            kernels::scatter_(x, dim, index, source, "multiply");
        } else {
            kernels::scatter_reduce_(x, dim, index, source, "prod");
        }
    }
}

void scatter(at::Tensor& x, int64_t dim, const at::Tensor& index, const at::Scalar& value, const std::string& reduce) {
    if (reduce.empty()) {
        kernels::scatter_(x, dim, index, value);
    } else {
        scatter(x, dim, index, at::full_like(index, value, x.options(), at::MemoryFormat::Contiguous), reduce);
    }
}

// NULL is "" too.
const char* how(const char* reduce) { return reduce ? reduce : ""; }

}  // namespace

diopiError_t diopiScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                          diopiConstTensorHandle_t src, diopiConstTensorHandle_t index, const char* reduce) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, at::Tensor& source, at::Tensor& i, std::string& kind) {
        write(o, x);
        scatter(o, d, i, source, kind);
    }, out, input, dim, src, index, how(reduce));
}

diopiError_t diopiScatterInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t src,
                             diopiConstTensorHandle_t index, const char* reduce) {
    return run(ctx, __func__, [](at::Tensor& x, int64_t d, at::Tensor& source, at::Tensor& i, std::string& kind) {
        scatter(x, d, i, source, kind);
    }, input, dim, src, index, how(reduce));
}

diopiError_t diopiScatterScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim,
                                const diopiScalar_t* value, diopiConstTensorHandle_t index, const char* reduce) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, at::Scalar& v, at::Tensor& i, std::string& kind) {
        write(o, x);
        scatter(o, d, i, v, kind);
    }, out, input, dim, value, index, how(reduce));
}

diopiError_t diopiScatterInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, int64_t dim, const diopiScalar_t* value,
                                   diopiConstTensorHandle_t index, const char* reduce) {
    return run(ctx, __func__, [](at::Tensor& x, int64_t d, at::Scalar& v, at::Tensor& i, std::string& kind) { scatter(x, d, i, v, kind); },
               input, dim, value, index, how(reduce));
}

// ---- rows of a table ----

diopiError_t diopiOneHot(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t num_classes) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t classes) {
        TORCH_CHECK(o.dim() == x.dim() + 1, "the output needs one dimension more than the input, has ", o.dim(), " for ", x.dim());
        TORCH_CHECK(classes <= 0 || o.size(-1) == classes, "the output has ", o.size(-1), " columns for ", classes, " classes");
        if (classes <= 0) check_range(x, o.size(-1));  // before anything of that size is made
        write(o, at::one_hot(x.to(at::kLong), classes > 0 ? classes : -1));
    }, out, input, num_classes);
}

diopiError_t diopiEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t indices, int64_t padding_idx, bool scale_grad_byfreq, bool sparse) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& w, at::Tensor& i) {
        TORCH_CHECK(w.dim() == 2, "the table must have 2 dimensions, has ", w.dim());
        Dims sizes(i.sizes().begin(), i.sizes().end());
        sizes.push_back(w.size(1));
        check_shape(o, sizes);
        const auto rows = i.reshape({-1});
        if (!o.is_contiguous()) return void(o.copy_(kernels::index_select(w, 0, rows).view(o.sizes())));
        auto flat_out = o.view({rows.numel(), w.size(1)});
        kernels::index_select_out(flat_out, w, 0, rows);
    }, out, weight, indices);
}

diopiError_t diopiEmbeddingBackward(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t grad,
                                    diopiConstTensorHandle_t indices, int64_t num_weights, int64_t padding_idx,
                                    bool scale_grad_byfreq, bool sparse) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& i, int64_t rows, int64_t padding, bool averaged) {
        TORCH_CHECK(g.dim() == i.dim() + 1, "the gradient has ", g.dim(), " dimensions for indices of ", i.dim());
        check_shape(o, {rows, g.size(-1)});  // before anything of that size is made
        TORCH_CHECK(g.numel() == i.numel() * g.size(-1), "a gradient of shape ", g.sizes(), " does not fit indices of shape ", i.sizes());
        check_range(i, rows);
        if (reordered() && i.numel() > 0) return split_sums::embedding_backward(o, g, i, padding, averaged);
        // half dtypes would be rounded at every sum
        o.copy_(kernels::embedding_dense_backward(for_sums(g), i, rows, padding, averaged));
    }, out, grad, indices, num_weights, padding_idx, scale_grad_byfreq);
}

diopiError_t diopiEmbeddingRenorm_(diopiContextHandle_t ctx, diopiTensorHandle_t inout, diopiConstTensorHandle_t indices,
                                   double max_norm, double norm_type) {
    return run(ctx, __func__, [](at::Tensor& w, at::Tensor& i, double most, double kind) {
        TORCH_CHECK(w.dim() == 2, "the table must have 2 dimensions, has ", w.dim());
        check_range(i, w.size(0));
        at::Tensor table = upcast(w);  // a scale rounded to a half would be off
        kernels::embedding_renorm_(table, i, most, kind);
        if (!table.is_same(w)) w.copy_(table);
    }, inout, indices, max_norm, norm_type);
}
