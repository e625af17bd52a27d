// What the attention operators share: checks, precision, dropout, the sequences of a call, layouts.
#include "attention.h"

#include <ATen/TensorOperators.h>
#include KERNELS(bernoulli)
#include <ATen/ops/empty.h>
#include <ATen/ops/log.h>
#include <ATen/ops/zeros.h>

#include "draw.h"

namespace dipu_vendor {

at::Tensor Attended::lse() const { return at::log(sum) + largest; }

at::ScalarType accumulation(const at::Tensor& tensor) {
    TORCH_CHECK(at::isFloatingType(tensor.scalar_type()) && tensor.scalar_type() <= at::kBFloat16, "attention of dtype ",
                tensor.scalar_type(),
                " is not known; it takes float16, bfloat16, float32 and float64");
    return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor accumulated(const at::Tensor& tensor) { return tensor.to(accumulation(tensor)).contiguous(); }

std::vector<int64_t> integers(const at::Tensor& tensor, const char* name) {
    TORCH_CHECK(tensor.dim() == 1 && at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false), name,
                " must be a list of integers, but it has the shape ", tensor.sizes(), " and the dtype ", tensor.scalar_type());
    const at::Tensor wide = tensor.to(at::kCPU, at::kLong).contiguous();
    return {wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
}

void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t rank) {
    TORCH_CHECK(q.dim() == rank && k.dim() == rank && v.dim() == rank, "q, k and v must have ", rank, " dimensions, but have the shapes ",
                q.sizes(), ", ", k.sizes(), " and ", v.sizes());
    TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "q, k and v must have one dtype, but have ",
                q.scalar_type(), ", ", k.scalar_type(), " and ", v.scalar_type());
    accumulation(q);
    TORCH_CHECK(rank == 3 || (q.size(0) == k.size(0) && k.size(0) == v.size(0)), "q, k and v are batches of ", q.size(0), ", ", k.size(0),
                " and ", v.size(0));
    TORCH_CHECK(k.size(rank - 3) == v.size(rank - 3) && k.size(rank - 2) == v.size(rank - 2), "k ", k.sizes(), " and v ", v.sizes(),
                " must have the same length and heads");
    TORCH_CHECK(q.size(rank - 1) == k.size(rank - 1), "q and k have widths ", q.size(rank - 1), " and ", k.size(rank - 1));
    const int64_t heads = q.size(rank - 2), key_heads = k.size(rank - 2);
    TORCH_CHECK(heads > 0 && key_heads > 0 && heads % key_heads == 0, heads, " query heads cannot share ", key_heads, " key heads evenly");
}

void check_scoring(const Scoring& scoring) {
    TORCH_CHECK(scoring.dropout >= 0 && scoring.dropout <= 1, "dropout has a probability between 0 and 1, not ", scoring.dropout);
}

at::Tensor slopes_of(const std::optional<at::Tensor>& slopes, int64_t batch, int64_t heads, const at::Tensor& like, int64_t batches) {
    if (!slopes || !slopes->defined()) return {};
    const bool shared = slopes->dim() == 1;
    TORCH_CHECK((shared && slopes->size(0) == heads) || (slopes->dim() == 2 && slopes->size(0) == batches && slopes->size(1) == heads),
                "alibi_slopes must be [", heads, "] or [", batches, ", ", heads, "], but has the shape ", slopes->sizes());
    return (shared ? *slopes : slopes->select(0, batch)).to(accumulation(like)).contiguous();
}

namespace {

void check_cumulative(const std::vector<int64_t>& cumulative, int64_t total, int64_t longest, const char* what) {
    TORCH_CHECK(!cumulative.empty() && cumulative.front() == 0, "the cumulative lengths of ", what, " must begin with 0");
    for (size_t i = 1; i < cumulative.size(); ++i) {
        TORCH_CHECK(cumulative[i] >= cumulative[i - 1] && cumulative[i] <= total, "the cumulative lengths of ", what,
                    " must rise up to at most ", total, ", but ", cumulative[i], " comes after ", cumulative[i - 1]);
        TORCH_CHECK(cumulative[i] - cumulative[i - 1] <= longest, "a sequence of ", cumulative[i] - cumulative[i - 1], " ", what,
                    " is longer than the maximum given, ", longest);
    }
}

}  // namespace

Spans spans_of(std::vector<int64_t> cumulative_q, std::vector<int64_t> cumulative_k, const at::Tensor& q, const at::Tensor& k,
               int64_t longest_q, int64_t longest_k) {
    TORCH_CHECK(cumulative_q.size() == cumulative_k.size(), "there are cumulative lengths of ", cumulative_q.size(), " query and ",
                cumulative_k.size(), " key sequences");
    check_cumulative(cumulative_q, q.size(0), longest_q, "queries");
    check_cumulative(cumulative_k, k.size(0), longest_k, "keys");
    return {std::move(cumulative_q), std::move(cumulative_k)};
}

std::vector<int64_t> from_ends(const Dims& ends) {
    std::vector<int64_t> cumulative(1, 0);
    cumulative.insert(cumulative.end(), ends.begin(), ends.end());
    return cumulative;
}

at::Tensor drawn_keep(diopiContextHandle_t ctx, diopiGeneratorHandle_t generator, double dropout, at::IntArrayRef sizes, bool advance) {
    TORCH_CHECK(dropout >= 0 && dropout <= 1, "dropout has a probability between 0 and 1, not ", dropout);
    if (dropout == 0) return {};
    TORCH_CHECK(generator, "dropout needs a generator, but it is NULL");
    CallScope scope(ctx);
    GeneratorLease drawn(ctx, generator);
    at::Tensor kept = at::empty(sizes, at::TensorOptions().dtype(at::kBool).device(drawn.device()));
    kernels::bernoulli_(kept, 1 - dropout, *drawn);
    if (advance) drawn.give_back();
    return kept;
}

// ---- the sequences of a call ----

Operands dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    check_operands(q, k, v, 4);
    return {accumulated(q), accumulated(k), accumulated(v), std::nullopt, std::nullopt, {}, {}};
}

Operands packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Spans spans) {
    check_operands(q, k, v, 3);
    return {accumulated(q), accumulated(k), accumulated(v), std::move(spans), std::nullopt, {}, {}};
}

Operands with(Operands operands, const Maybes& slopes, const at::Tensor& mask, const at::Tensor& keep) {
    operands.slopes = slopes;
    operands.mask = mask;
    operands.keep = keep;
    return operands;
}

at::Tensor Operands::of_queries(const at::Tensor& whole, int64_t b) const {
    return spans ? whole.narrow(0, spans->q[b], spans->queries(b)) : whole.select(0, b);
}

at::Tensor Operands::of_keys(const at::Tensor& whole, int64_t b) const {
    return spans ? whole.narrow(0, spans->k[b], spans->keys(b)) : whole.select(0, b);
}

at::Tensor Operands::empty_out() const {
    Dims sizes(q.sizes().begin(), q.sizes().end());
    sizes.back() = v.size(v.dim() - 1);
    return at::zeros(sizes, q.options());
}

namespace {

// The part of a mask for one sequence as bool [heads, queries, keys]. Packed sequences use its first rows and columns.
at::Tensor mask_of(const Operands& operands, int64_t b) {
    const at::Tensor& mask = operands.mask;
    const int64_t heads = operands.heads(), queries = operands.queries(b), keys = operands.keys(b);
    TORCH_CHECK(mask.dim() == 2 || (mask.dim() == 4 && !operands.spans), "the attention mask must be [queries, keys]",
                operands.spans ? "" : " or [batch, heads, queries, keys]", ", but has the shape ", mask.sizes());
    at::Tensor own = mask;
    if (mask.dim() == 4) {
        TORCH_CHECK(mask.size(0) == 1 || mask.size(0) == operands.count(), "the attention mask is for ", mask.size(0), " sequences of ",
                    operands.count());
        own = mask.select(0, mask.size(0) == 1 ? 0 : b);
    }
    const int64_t rows = own.size(own.dim() - 2), columns = own.size(own.dim() - 1);
    const bool fits = operands.spans ? rows >= queries && columns >= keys : rows == queries && columns == keys;
    TORCH_CHECK(fits, "the attention mask is for ", rows, " queries and ", columns, " keys, but there are ", queries, " and ", keys);
    own = own.narrow(own.dim() - 2, 0, queries).narrow(own.dim() - 1, 0, keys);
    return own.ne(0).expand({heads, queries, keys});
}

at::Tensor keep_of(const Operands& operands, int64_t b) {
    const at::Tensor& keep = operands.keep;
    TORCH_CHECK(keep.dim() == 4 && keep.size(0) == operands.count() && keep.size(1) == operands.heads() &&
                keep.size(2) >= operands.queries(b) &&
                    keep.size(3) >= operands.keys(b),
                "dropout's mask has the shape ", keep.sizes(), ", which does not fit ", operands.count(), " sequences of ",
                operands.heads(),
                " heads");
    return keep.select(0, b).narrow(1, 0, operands.queries(b)).narrow(2, 0, operands.keys(b)).ne(0);
}

}  // namespace

Sequence Operands::sequence(int64_t b) const {
    return {of_queries(q, b), of_keys(k, b), of_keys(v, b), slopes_of(slopes, b, heads(), q, count()),
            mask.defined() ? mask_of(*this, b) : mask, keep.defined() ? keep_of(*this, b) : keep};
}

// ---- layouts ----

at::Tensor by_length(const at::Tensor& tensor, const std::string& layout, int64_t heads) {
    const bool known = layout == "BSND" || layout == "BNSD" || layout == "BSH" || layout == "SBH";
    TORCH_CHECK(known, "'", layout, "' is not a layout; known are BSND, BNSD, BSH and SBH");
    const auto rank = static_cast<int64_t>(layout.size());
    TORCH_CHECK(tensor.dim() == rank, "a tensor of layout ", layout, " has ", rank, " dimensions, not the shape ", tensor.sizes());
    if (rank == 4) {
        const at::Tensor dense = layout == "BNSD" ? tensor.transpose(1, 2) : tensor;
        TORCH_CHECK(dense.size(2) == heads, "there are ", dense.size(2), " heads instead of ", heads);
        return dense;
    }
    TORCH_CHECK(heads > 0 && tensor.size(2) % heads == 0, "a width of ", tensor.size(2), " cannot be divided among ", heads, " heads");
    const at::Tensor first = layout == "SBH" ? tensor.transpose(0, 1) : tensor;
    return first.reshape({first.size(0), first.size(1), heads, first.size(2) / heads});
}

at::Tensor in_layout(const at::Tensor& dense, const std::string& layout) {
    if (layout == "BSND") return dense;
    if (layout == "BNSD") return dense.transpose(1, 2);
    const at::Tensor flat = dense.flatten(2);
    return layout == "SBH" ? flat.transpose(0, 1) : flat;
}

int64_t key_heads_of(const at::Tensor& q, const at::Tensor& k, const std::string& layout, int64_t heads) {
    TORCH_CHECK(q.dim() == static_cast<int64_t>(layout.size()) && k.dim() == q.dim(), "tensors of layout ", layout, " have the shapes ",
                q.sizes(),
                " and ", k.sizes());
    if (q.dim() == 4) return k.size(layout == "BNSD" ? 1 : 2);
    TORCH_CHECK(heads > 0 && q.dim() == 3 && q.size(2) % heads == 0 && q.size(2) >= heads && k.size(2) % (q.size(2) / heads) == 0, heads,
                " heads do not divide widths of ", q.sizes(), " and ", k.sizes());
    return k.size(2) / (q.size(2) / heads);
}

}  // namespace dipu_vendor
