// Operators of inference servers: penalties, key/value caches, attention over the tokens of a cache.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "attention.h"

using namespace dipu_vendor;

namespace {

// ---- checks of what a server hands over ----

int64_t in_range(int64_t index, int64_t size, const char* name) {
    TORCH_CHECK(index >= 0 && index < size, name, " holds ", index, ", which is not between 0 and ", size - 1);
    return index;
}

// Numbers that are multiplied with each other: none is so large that a product overflows.
int64_t extent(int64_t number, const char* name) {
    TORCH_CHECK(number > 0 && number <= (1 << 20), name, " cannot be ", number);
    return number;
}

double usual_scale(int64_t width) { return 1 / std::sqrt(static_cast<double>(width)); }

// One number for each of `count`, or one for all.
std::vector<double> numbers(const at::Tensor& tensor, int64_t count, const char* name) {
    TORCH_CHECK(!tensor.is_complex() && tensor.dim() <= 1 && (tensor.numel() == count || tensor.numel() == 1), name, " must hold ", count,
                " numbers, but has the shape ", tensor.sizes());
    const at::Tensor doubles = tensor.to(at::kDouble).reshape({-1}).expand({count}).contiguous();
    return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + count};
}

// Where the sequences of a batch lie in a list of all their tokens.
struct Batch {
    std::vector<int64_t> starts, lengths;
    int64_t count() const { return static_cast<int64_t>(starts.size()); }

    Batch(const at::Tensor& b_start_loc, const at::Tensor& b_seq_len, int64_t total, int64_t longest)
        : starts(integers(b_start_loc, "b_start_loc")), lengths(integers(b_seq_len, "b_seq_len")) {
        TORCH_CHECK(starts.size() == lengths.size(), "b_start_loc is for ", starts.size(), " sequences, b_seq_len for ", lengths.size());
        for (size_t b = 0; b < starts.size(); ++b) {
            TORCH_CHECK(lengths[b] >= 0 && lengths[b] <= longest, "b_seq_len holds ", lengths[b], ", but max_input_len is ", longest);
            TORCH_CHECK(starts[b] >= 0 && starts[b] <= total - lengths[b], "a sequence of ", lengths[b], " tokens cannot start at ",
                        starts[b],
                        " of ", total);
        }
    }
};

// The rows of each sequence in a cache: the last ones of the first `longest` columns of b_loc.
class Locations {
   public:
    Locations(const at::Tensor& b_loc, const Batch& batch, int64_t longest, int64_t rows) : longest_(longest), rows_(rows) {
        TORCH_CHECK(b_loc.dim() == 2 && at::isIntegralType(b_loc.scalar_type(), /*includeBool=*/false) && b_loc.size(0) == batch.count() &&
                        b_loc.size(1) >= longest,
                    "b_loc must be integers [", batch.count(), ", at least ", longest, "], but has the shape ", b_loc.sizes(),
                    " and the dtype ", b_loc.scalar_type());
        table_ = b_loc.to(at::kLong).contiguous();
    }
    int64_t row(int64_t sequence, int64_t length, int64_t token) const {
        return in_range(table_.const_data_ptr<int64_t>()[sequence * table_.size(1) + longest_ - length + token], rows_, "b_loc");
    }

   private:
    at::Tensor table_;
    int64_t longest_, rows_;
};

int64_t group_of(int64_t heads, int64_t key_heads) {
    TORCH_CHECK(heads > 0 && key_heads > 0 && heads % key_heads == 0, heads, " query heads cannot share ", key_heads, " key heads evenly");
    return heads / key_heads;
}

// ---- token attention: one query for each sequence ----

template <class T>
void score_tokens(const at::Tensor& q, const at::Tensor& k, const Locations& slots, const Batch& batch, at::Tensor& scores) {
    const int64_t heads = q.size(1), width = q.size(2), key_heads = k.size(1), group = group_of(heads, key_heads), total = scores.size(1);
    const T *queries = q.const_data_ptr<T>(), *keys = k.const_data_ptr<T>(), scale = static_cast<T>(usual_scale(width));
    T* out = scores.data_ptr<T>();
    for (int64_t b = 0; b < batch.count(); ++b) {
        for (int64_t token = 0; token < batch.lengths[b]; ++token) {
            const T* row = keys + slots.row(b, batch.lengths[b], token) * key_heads * width;
            for (int64_t head = 0; head < heads; ++head) {
                T sum = 0;
                for (int64_t d = 0; d < width; ++d) sum += queries[(b * heads + head) * width + d] * row[head / group * width + d];
                out[head * total + batch.starts[b] + token] = sum * scale;
            }
        }
    }
}

template <class T>
void reduce_values(const at::Tensor& logics, const at::Tensor& v, const Locations& slots, const Batch& batch, at::Tensor& made) {
    const int64_t heads = logics.size(0), total = logics.size(1), width = v.size(2), key_heads = v.size(1),
    group = group_of(heads, key_heads);
    const T *scores = logics.const_data_ptr<T>(), *values = v.const_data_ptr<T>();
    for (int64_t b = 0; b < batch.count(); ++b) {
        for (int64_t head = 0; head < heads; ++head) {
            const T* row = scores + head * total + batch.starts[b];
            T* out = made.data_ptr<T>() + (b * heads + head) * width;
            T largest = -std::numeric_limits<T>::infinity(), sum = 0;
            for (int64_t token = 0; token < batch.lengths[b]; ++token) largest = std::max(largest, row[token]);
            for (int64_t token = 0; token < batch.lengths[b]; ++token) {
                const T weight = std::exp(row[token] - largest);
                const T* value = values + (slots.row(b, batch.lengths[b], token) * key_heads + head / group) * width;
                for (int64_t d = 0; d < width; ++d) out[d] += weight * value[d];
                sum += weight;
            }
            for (int64_t d = 0; d < width && batch.lengths[b]; ++d) out[d] /= sum;
        }
    }
}

// ---- attention over blocks of a cache ----

struct Heads {
    int64_t queries, keys, width;
    Heads(int64_t num_heads, int64_t num_kv_heads, int64_t dim)
        : queries(extent(num_heads, "num_heads")), keys(num_kv_heads ? extent(num_kv_heads, "num_kv_heads") : num_heads),
        width(extent(dim, "dim")) {
        group_of(queries, keys);
    }
};

// The blocks of one sequence, one behind the other, as far as it is long.
at::Tensor gathered(const at::Tensor& rows, const int64_t* blocks, int64_t length, int64_t block_size) {
    at::Tensor index = at::empty({length}, at::TensorOptions().dtype(at::kLong));
    int64_t* to = index.data_ptr<int64_t>();
    const int64_t count = rows.size(0) / block_size;
    for (int64_t i = 0; i < length; ++i) to[i] = in_range(blocks[i / block_size], count, "block_table") * block_size + i % block_size;
    return accumulated(at::index_select(rows, 0, index));
}

void paged(at::Tensor& out, at::Tensor& q, at::Tensor& k, at::Tensor& v, Maybes& mask, Dims lengths, Heads heads, at::Tensor& block_table,
           int64_t block_size) {
    const auto batch = static_cast<int64_t>(lengths.size());
    extent(block_size, "block_size");
    TORCH_CHECK(q.dim() > 0 && q.size(0) == batch && q.numel() == batch * (heads.queries * heads.width), "q of shape ", q.sizes(),
                " does not hold one query of ", heads.queries, " heads of ", heads.width, " for each of ", batch, " sequences");
    TORCH_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(), "q, k and v must have one dtype");
    TORCH_CHECK(k.numel() == v.numel() && k.numel() % (block_size * heads.keys * heads.width) == 0, "caches of shapes ", k.sizes(), " and ",
                v.sizes(), " do not consist of blocks of ", block_size, " rows with ", heads.keys, " heads of ", heads.width);
    TORCH_CHECK(block_table.dim() == 2 && block_table.size(0) == batch &&
                at::isIntegralType(block_table.scalar_type(), /*includeBool=*/false),
                "block_table must be integers [", batch, ", blocks], but has the shape ", block_table.sizes());
    const at::Tensor blocks = block_table.to(at::kLong).contiguous();
    const at::Tensor key_rows = k.reshape({-1, heads.keys, heads.width}), value_rows = v.reshape({-1, heads.keys, heads.width});
    const at::Tensor queries = accumulated(q).view({batch, 1, heads.queries, heads.width});
    const at::Tensor hidden = mask && batch ? mask->ne(0).reshape({batch, -1}) : at::Tensor();
    at::Tensor made = at::zeros_like(queries);
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t length = lengths[b];
        TORCH_CHECK(length >= 0 && length <= blocks.size(1) * block_size, "a sequence of ", length, " tokens does not fit into ",
                    blocks.size(1),
                    " blocks of ", block_size);
        TORCH_CHECK(!hidden.defined() || hidden.size(1) >= length, "the mask is for ", hidden.size(1), " keys, but there are ", length);
        const int64_t* own = blocks.const_data_ptr<int64_t>() + b * blocks.size(1);
        Sequence sequence{queries.select(0, b), gathered(key_rows, own, length, block_size),
                          gathered(value_rows, own, length, block_size), {}, {}, {}};
        if (hidden.defined()) sequence.mask = hidden.select(0, b).narrow(0, 0, length).expand({heads.queries, 1, length});
        made.select(0, b).copy_(attend(sequence, Scoring{usual_scale(heads.width)}).out);
    }
    write(out, made.view(q.sizes()), "out");
}

// ---- attention over padded prompts ----

at::Tensor padded(const at::Tensor& tensor, int64_t batch, int64_t longest, int64_t heads, int64_t width, const char* name) {
    TORCH_CHECK(tensor.numel() == batch * longest * heads * width && tensor.dim() > 0 &&
                (tensor.size(0) == batch || tensor.size(0) == batch * longest),
                name, " of shape ", tensor.sizes(), " does not hold ", batch, " sequences padded to ", longest, " with ", heads,
                " heads of ", width);
    return accumulated(tensor).view({batch, longest, heads, width});
}

void prompt(at::Tensor& out, at::Tensor& q, at::Tensor& k, at::Tensor& v, Maybes& mask, Dims lengths, int64_t longest, Heads heads) {
    const auto batch = static_cast<int64_t>(lengths.size());
    TORCH_CHECK(batch * heads.queries < (int64_t{1} << 22), "a batch of ", batch, " with ", heads.queries, " heads cannot be right");
    extent(longest, "max_input_len");
    TORCH_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(), "query, key and value must have one dtype");
    const at::Tensor queries = padded(q, batch, longest, heads.queries, heads.width, "query"),
                     keys = padded(k, batch, longest, heads.keys, heads.width, "key"),
                     values = padded(v, batch, longest, heads.keys, heads.width, "value");
    at::Tensor hidden;
    if (mask) {
        TORCH_CHECK(mask->numel() == longest * longest || mask->numel() == batch * longest * longest, "a mask of shape ", mask->sizes(),
                    " is not for ", longest, " queries and keys");
        hidden = mask->ne(0).reshape({-1, longest, longest});
    }
    at::Tensor made = at::zeros_like(queries);
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t length = lengths[b];
        TORCH_CHECK(length >= 0 && length <= longest, "a sequence of ", length, " tokens is longer than max_input_len, ", longest);
        const auto part = [&](const at::Tensor& whole) { return whole.select(0, b).narrow(0, 0, length); };
        Sequence sequence{part(queries), part(keys), part(values), {}, {}, {}};
        if (hidden.defined()) {
            const at::Tensor own = hidden.select(0, hidden.size(0) == 1 ? 0 : b);
            sequence.mask = own.narrow(0, 0, length).narrow(1, 0, length).expand({heads.queries, length, length});
        }
        part(made).copy_(attend(sequence, Scoring{usual_scale(heads.width)}).out);
    }
    write(out, made.view(q.sizes()), "out");
}

// ---- penalties ----

// Ids as positions among `size` logits.
std::vector<int64_t> token_ids(const at::Tensor& ids, int64_t size) {
    std::vector<int64_t> found = integers(ids, "p_token_ids");
    for (const int64_t id : found) in_range(id, size, "p_token_ids");
    return found;
}

// Changes single numbers of the logits, in double precision: `change(logit, token)`.
template <class Change>
void penalize(at::Tensor& logits, const std::vector<int64_t>& where, Change change) {
    at::Tensor doubles = logits.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
    double* values = doubles.data_ptr<double>();
    for (size_t token = 0; token < where.size(); ++token) values[where[token]] = change(values[where[token]], token);
    logits.copy_(doubles);
}

}  // namespace

diopiError_t diopiApplyPenalty(diopiContextHandle_t ctx, diopiTensorHandle_t logits, diopiConstTensorHandle_t presence_penalty,
                               diopiConstTensorHandle_t frequency_penalty, diopiConstTensorHandle_t p_token_ids,
                               diopiConstTensorHandle_t p_token_counts, diopiConstTensorHandle_t p_cumsum_seq_len, int p_max_len_in_batch) {
    return run(
        ctx, __func__,
        [](at::Tensor& logits, at::Tensor& presence, at::Tensor& frequency, at::Tensor& ids, at::Tensor& counts, at::Tensor& ends,
           int longest) {
            TORCH_CHECK(logits.dim() == 2, "logits must be [batch, vocabulary], but have the shape ", logits.sizes());
            accumulation(logits);
            const int64_t batch = logits.size(0), vocabulary = logits.size(1);
            const auto once = numbers(presence, batch, "presence_penalty"), each = numbers(frequency, batch, "frequency_penalty");
            std::vector<int64_t> where = token_ids(ids, vocabulary);
            const auto repeated = numbers(counts, ids.numel(), "p_token_counts");
            const auto cumulative = integers(ends, "p_cumsum_seq_len");
            TORCH_CHECK(static_cast<int64_t>(cumulative.size()) == batch + 1 && cumulative.front() >= 0, "p_cumsum_seq_len must have ",
                        batch + 1, " numbers from 0 on");
            std::vector<int64_t> positions, owners, tokens;
            for (int64_t b = 0; b < batch; ++b) {
                const int64_t count = cumulative[b + 1] - cumulative[b];
                TORCH_CHECK(count >= 0 && count <= longest && cumulative[b + 1] <= ids.numel(), "sequence ", b, " has ", count,
                            " of ", ids.numel(), " tokens; p_max_len_in_batch is ", longest);
                for (int64_t token = cumulative[b]; token < cumulative[b + 1]; ++token)
                    positions.push_back(b * vocabulary + where[token]), owners.push_back(b), tokens.push_back(token);
            }
            penalize(logits, positions, [&](double logit, size_t i) {
                return logit - each[owners[i]] * repeated[tokens[i]] - once[owners[i]];
            });
        },
        logits, presence_penalty, frequency_penalty, p_token_ids, p_token_counts, p_cumsum_seq_len, p_max_len_in_batch);
}

diopiError_t diopiApplyPenaltyV2(diopiContextHandle_t ctx, diopiTensorHandle_t logits, diopiConstTensorHandle_t presence_penalty,
                                 diopiConstTensorHandle_t frequency_penalty, diopiConstTensorHandle_t repetition_penalty,
                                 diopiConstTensorHandle_t p_token_ids, diopiConstTensorHandle_t p_token_counts) {
    return run(
        ctx, __func__,
        [](at::Tensor& logits, at::Tensor& presence, at::Tensor& frequency, at::Tensor& repetition, at::Tensor& ids, at::Tensor& counts) {
            accumulation(logits);
            const std::vector<int64_t> where = token_ids(ids, logits.numel());
            const int64_t count = ids.numel();
            const auto once = numbers(presence, count, "presence_penalty"), each = numbers(frequency, count, "frequency_penalty"),
                       again = numbers(repetition, count, "repetition_penalty"), repeated = numbers(counts, count, "p_token_counts");
            penalize(logits, where, [&](double logit, size_t i) {
                return (logit > 0 ? logit / again[i] : logit * again[i]) - each[i] * repeated[i] - once[i];
            });
        },
        logits, presence_penalty, frequency_penalty, repetition_penalty, p_token_ids, p_token_counts);
}

diopiError_t diopiDestIndexCopyKV(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t k,
                                  diopiConstTensorHandle_t dest_loc) {
    return run(
        ctx, __func__, [](at::Tensor& cache, at::Tensor& k, at::Tensor& dest_loc) {
            const auto slots = integers(dest_loc, "dest_loc");
            TORCH_CHECK(k.dim() > 0 && cache.dim() > 0 && k.size(0) == dest_loc.size(0) && k.sizes().slice(1) == cache.sizes().slice(1),
                        "rows of shape ", k.sizes(), " cannot be copied to ", slots.size(), " rows of ", cache.sizes());
            TORCH_CHECK(k.scalar_type() == cache.scalar_type(), "k is ", k.scalar_type(), ", out is ", cache.scalar_type());
            for (const int64_t slot : slots) in_range(slot, cache.size(0), "dest_loc");
            for (size_t i = 0; i < slots.size(); ++i) cache.select(0, slots[i]).copy_(k.select(0, static_cast<int64_t>(i)));
        },
        out, k, dest_loc);
}

diopiError_t diopiTokenAttentionInference(diopiContextHandle_t ctx, diopiTensorHandle_t token_attention_out, diopiConstTensorHandle_t q,
                                          diopiConstTensorHandle_t k, diopiConstTensorHandle_t b_loc, diopiConstTensorHandle_t b_start_loc,
                                          diopiConstTensorHandle_t b_seq_len, int max_input_len) {
    return run(
        ctx, __func__,
        [](at::Tensor& out, at::Tensor& q, at::Tensor& k, at::Tensor& b_loc, at::Tensor& starts, at::Tensor& lengths, int longest) {
            TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && q.size(2) == k.size(2) && q.scalar_type() == k.scalar_type(),
                        "q must be [batch, heads, width] and k ",
                        "[tokens, heads, width] of one dtype, but they have the shapes ", q.sizes(), " and ", k.sizes());
            TORCH_CHECK(out.dim() == 2 && out.size(0) == q.size(1), "the output must be [", q.size(1), ", tokens], but has the shape ",
                        out.sizes());
            const Batch batch(starts, lengths, out.size(1), longest);
            TORCH_CHECK(batch.count() == q.size(0), "there are ", q.size(0), " queries for ", batch.count(), " sequences");
            const Locations slots(b_loc, batch, longest, k.size(0));
            const at::Tensor queries = accumulated(q), keys = accumulated(k);
            // tokens of no sequence stay
            at::Tensor scores = out.to(queries.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous();
            accumulation(q) == at::kDouble ? score_tokens<double>(queries, keys, slots, batch, scores)
                                           : score_tokens<float>(queries, keys, slots, batch, scores);
            out.copy_(scores);
        },
        token_attention_out, q, k, b_loc, b_start_loc, b_seq_len, max_input_len);
}

diopiError_t diopiTokenSoftmaxReduceVInference(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t logics,
                                               diopiConstTensorHandle_t v, diopiConstTensorHandle_t b_loc,
                                               diopiConstTensorHandle_t b_start_loc,
                                               diopiConstTensorHandle_t b_seq_len, int max_input_len, int other_kv_index) {
    return run(
        ctx, __func__,
        [](at::Tensor& out, at::Tensor& logics, at::Tensor& v, at::Tensor& b_loc, at::Tensor& starts, at::Tensor& lengths, int longest) {
            TORCH_CHECK(logics.dim() == 2 && v.dim() == 3 && logics.scalar_type() == v.scalar_type(),
                        "logics must be [heads, tokens] and v ",
                        "[tokens, heads, width] of one dtype, but they have the shapes ", logics.sizes(), " and ", v.sizes());
            const Batch batch(starts, lengths, logics.size(1), longest);
            const Locations slots(b_loc, batch, longest, v.size(0));
            const at::Tensor scores = accumulated(logics), values = accumulated(v);
            at::Tensor made = at::zeros({batch.count(), logics.size(0), v.size(2)}, values.options());
            accumulation(v) == at::kDouble ? reduce_values<double>(scores, values, slots, batch, made)
                                           : reduce_values<float>(scores, values, slots, batch, made);
            write(out, made, "out");
        },
        out, logics, v, b_loc, b_start_loc, b_seq_len, max_input_len);
}

diopiError_t diopiPagedAttention(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
                                 diopiConstTensorHandle_t v, diopiConstTensorHandle_t attenMask, diopiSize_t actual_seq_lengths,
                                 int64_t num_heads,
                                 int64_t num_kv_heads, int64_t dim, diopiConstTensorHandle_t block_table, int64_t block_size) {
    return run(
        ctx, __func__,
        [](at::Tensor& out, at::Tensor& q, at::Tensor& k, at::Tensor& v, Maybes& mask, Dims lengths, int64_t heads, int64_t key_heads,
           int64_t dim,
           at::Tensor& table, int64_t size) { paged(out, q, k, v, mask, lengths, Heads(heads, key_heads, dim), table, size); },
        out, q, k, v, maybe(attenMask), actual_seq_lengths, num_heads, num_kv_heads, dim, block_table, block_size);
}

diopiError_t diopiContextAttentionInference(diopiContextHandle_t ctx, diopiTensorHandle_t context_attention_out, diopiConstTensorHandle_t q,
                                            diopiConstTensorHandle_t k, diopiConstTensorHandle_t v, diopiConstTensorHandle_t b_start_loc,
                                            diopiConstTensorHandle_t b_seq_len, int max_input_len) {
    return run(
        ctx, __func__,
        [](at::Tensor& out, at::Tensor& q, at::Tensor& k, at::Tensor& v, at::Tensor& starts, at::Tensor& lengths, int longest) {
            check_operands(q, k, v, 3);
            TORCH_CHECK(q.size(0) == k.size(0), "there are ", q.size(0), " queries and ", k.size(0), " keys");
            const Batch batch(starts, lengths, q.size(0), longest);
            const at::Tensor queries = accumulated(q), keys = accumulated(k), values = accumulated(v);
            at::Tensor made = at::zeros({q.size(0), q.size(1), v.size(2)}, queries.options());
            for (int64_t b = 0; b < batch.count(); ++b) {
                const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, batch.starts[b], batch.lengths[b]); };
                const Sequence sequence{part(queries), part(keys), part(values), {}, {}, {}};
                part(made).copy_(attend(sequence, Scoring{usual_scale(q.size(2)), /*causal=*/true}).out);
            }
            write(out, made, "the output");
        },
        context_attention_out, q, k, v, b_start_loc, b_seq_len, max_input_len);
}

diopiError_t diopiPromptFlashAttention(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t query,
                                       diopiConstTensorHandle_t key, diopiConstTensorHandle_t value, diopiConstTensorHandle_t atten_mask,
                                       diopiSize_t actual_seq_lengths, int64_t max_input_len, int64_t num_heads, int64_t num_kv_heads,
                                       int64_t dim) {
    return run(
        ctx, __func__,
        [](at::Tensor& out, at::Tensor& q, at::Tensor& k, at::Tensor& v, Maybes& mask, Dims lengths, int64_t longest, int64_t heads,
           int64_t key_heads, int64_t dim) { prompt(out, q, k, v, mask, lengths, longest, Heads(heads, key_heads, dim)); },
        out, query, key, value, maybe(atten_mask), actual_seq_lengths, max_input_len, num_heads, num_kv_heads, dim);
}
