// Attention, as Python calls it: values are checked here, shapes and dtypes were checked by the interface.
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <optional>
#include <vector>

#include "bindings.h"
#include "kernels/attention.h"
#include "paging.h"

namespace dlinfer {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

// ---- tensors as the kernel takes them ----

/// Which dimensions of keys or values are blocks (-1: none), tokens and heads; the last one is elements.
struct KvLayout {
    int64_t block_dim, token_dim, head_dim;
};
constexpr KvLayout PAGED{0, 1, 2}, FRESH{-1, 0, 1};

/// One call: everything that the kernel points to lives here until it has run.
class AttentionCall {
public:
    AttentionCall(const at::Tensor& query, const at::Tensor& output);
    AttentionCall(const AttentionCall&) = delete;
    AttentionCall& operator=(const AttentionCall&) = delete;

    /// Whether the kernel reads and writes these as they lie.
    template <typename... Tensors>
    static bool takes(const at::Tensor& query, const Tensors&... others) {
        return has_dtype(query.scalar_type()) && takes_rows(query) && (takes_rows(others) && ...);
    }

    void sides(const at::Tensor& key, const at::Tensor& value, const KvLayout& layout, int64_t bits);
    void quantised(const at::Tensor& scales, const std::optional<at::Tensor>& zeros);
    void slopes(const std::optional<at::Tensor>& slopes);
    /// [..., queries, keys]: the last two dimensions count.
    void mask(const std::optional<at::Tensor>& mask);
    /// Releases the GIL if it takes long.
    void run();

    Attention kernel{};
    c10::SmallVector<Sequence, 16> sequences;

private:
    static bool takes_rows(const at::Tensor& tensor) { return has_dense_rows(tensor) && tensor.size(-1); }

    at::Tensor slopes_, mask_;
    std::vector<float> key_scales_, value_scales_, key_zeros_, value_zeros_;
};

CacheElement stored_as(const at::Tensor& cache, int64_t bits) {
    if (bits == 4) return CacheElement::u4;
    if (bits == 8) return cache.scalar_type() == at::kChar ? CacheElement::i8 : CacheElement::u8;
    const Dtype dtype = dtype_of(cache.scalar_type());
    return dtype == Dtype::f32 ? CacheElement::f32 : dtype == Dtype::bf16 ? CacheElement::bf16 : CacheElement::f16;
}

Side side_of(const at::Tensor& cache, const KvLayout& layout, int64_t bits) {
    const auto bytes = static_cast<int64_t>(cache.element_size());
    return {static_cast<const char*>(readable(cache)),
            stored_as(cache, bits),
            cache.size(-1) * (bits == 4 ? 2 : 1),
            layout.block_dim < 0 ? 0 : cache.stride(layout.block_dim) * bytes,
            cache.stride(layout.token_dim) * bytes,
            cache.stride(layout.head_dim) * bytes,
            nullptr,
            nullptr};
}

AttentionCall::AttentionCall(const at::Tensor& query, const at::Tensor& output) {
    kernel.query = readable(query);
    kernel.output = writable(output);
    kernel.dtype = dtype_of(query.scalar_type());
    kernel.query_token = query.stride(-3);
    kernel.query_head = query.stride(-2);
    kernel.output_token = output.stride(-3);
    kernel.output_head = output.stride(-2);
    kernel.heads = query.size(-2);
    kernel.window_left = kernel.window_right = -1;
}

void AttentionCall::sides(const at::Tensor& key, const at::Tensor& value, const KvLayout& layout, int64_t bits) {
    kernel.keys = side_of(key, layout, bits);
    kernel.values = side_of(value, layout, bits);
    kernel.kv_heads = key.size(layout.head_dim);
}

void AttentionCall::quantised(const at::Tensor& scales, const std::optional<at::Tensor>& zeros) {
    key_scales_ = expanded(scales.select(0, 0), kernel.kv_heads, kernel.keys.size);
    value_scales_ = expanded(scales.select(0, 1), kernel.kv_heads, kernel.values.size);
    kernel.keys.scales = key_scales_.data();
    kernel.values.scales = value_scales_.data();
    if (!zeros) return;
    key_zeros_ = expanded(zeros->select(0, 0), kernel.kv_heads, kernel.keys.size);
    value_zeros_ = expanded(zeros->select(0, 1), kernel.kv_heads, kernel.values.size);
    kernel.keys.zeros = key_zeros_.data();
    kernel.values.zeros = value_zeros_.data();
}

void AttentionCall::slopes(const std::optional<at::Tensor>& slopes) {
    if (!slopes) return;
    slopes_ = slopes->to(at::kFloat).contiguous();
    kernel.slopes = readable<float>(slopes_);
}

void AttentionCall::mask(const std::optional<at::Tensor>& mask) {
    kernel.mask.type = Mask::Type::none;
    if (!mask) return;
    const bool hides = mask->scalar_type() == at::kBool;
    mask_ = hides ? *mask : mask->to(at::kFloat);
    if (!has_dense_rows(mask_)) mask_ = mask_.contiguous();
    kernel.mask = {hides ? Mask::Type::hides : Mask::Type::added, readable(mask_), mask_.stride(-2)};
    const int64_t each = mask_.dim() == 3 && mask_.size(0) > 1 ? mask_.stride(0) : 0;
    if (mask_.dim() == 3)
        for (size_t i = 0; i < sequences.size(); i++) sequences[i].mask_offset = static_cast<int64_t>(i) * each;
}

void AttentionCall::run() {
    kernel.sequences = sequences.data();
    kernel.count = static_cast<int64_t>(sequences.size());
    // Products; a thread that waits for the GIL gets it for work that takes longer than handing it over.
    int64_t work = 0;
    for (const auto& sequence : sequences) work += sequence.queries * sequence.keys * kernel.heads * (kernel.keys.size + kernel.values.size);
    std::optional<pybind11::gil_scoped_release> free;
    if (work > 2'000'000) free.emplace();
    DLINFER_PICK(attention)(kernel);
}

// ---- pages ----

/// Caches, table and lengths of a paged call.
struct Pages {
    const Tensor& key_cache;
    const Tensor& value_cache;
    const Tensor& block_table;
    const Integers table;
    const Lengths keys;

    Pages(const char* name, const Tensor& keys_of, const Tensor& values_of, const Tensor& blocks, const Tensor& kv_lengths)
        : key_cache(keys_of), value_cache(values_of), block_table(blocks), table(blocks), keys(checked_lengths(name, "kv_lengths", kv_lengths)) {}

    void check(const char* name, int64_t max_kv_len) const {
        check_blocks(name, table, block_table.size(1), keys, key_cache.size(0), key_cache.size(1));
        check_longest(name, keys, max_kv_len);
    }

    void hand_to(AttentionCall& call, const Maybe& scales, const Maybe& zeros, int64_t bits) const {
        call.sides(key_cache, value_cache, PAGED, bits);
        if (bits) call.quantised(*scales, zeros);
        call.kernel.table = table.data;
        call.kernel.table_is_long = table.is_long;
        call.kernel.block_size = key_cache.size(1);
    }
};

/// Adds a sequence that begins at a token of query and output.
void add_sequence(AttentionCall& call, int64_t token, int64_t queries, int64_t keys, int64_t mask_stride, int64_t table_offset) {
    const auto& kernel = call.kernel;
    call.sequences.push_back({queries, keys, token * kernel.query_token, token * kernel.output_token, token * mask_stride, 0, 0, table_offset});
}

void paged_decode_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                            const Tensor& kv_lengths, int64_t max_kv_len, const Tensor& attn_output, double softmax_scale, const Maybe& alibi_slopes,
                            int64_t window_left, double soft_cap, const Maybe& kv_scales, const Maybe& kv_zeros, int64_t quant_bits) {
    constexpr auto name = "paged_decode_attention";
    const Pages pages(name, key_cache, value_cache, block_table, kv_lengths);
    const auto batch = static_cast<int64_t>(pages.keys.size()), queries = batch ? query.size(0) / batch : 0;
    check_newest(name, queries, pages.keys);
    pages.check(name, max_kv_len);
    if (!AttentionCall::takes(query, key_cache, value_cache, attn_output))
        return reference<void>(name, query, key_cache, value_cache, block_table, kv_lengths, max_kv_len, attn_output, softmax_scale, alibi_slopes,
                               window_left, soft_cap, kv_scales, kv_zeros, quant_bits);
    AttentionCall call(query, attn_output);
    pages.hand_to(call, kv_scales, kv_zeros, quant_bits);
    for (int64_t i = 0; i < batch; i++) add_sequence(call, i * queries, queries, pages.keys[static_cast<size_t>(i)], 0, i * pages.table.stride);
    call.kernel.scale = static_cast<float>(softmax_scale);
    call.kernel.soft_cap = static_cast<float>(soft_cap);
    call.kernel.causal = true;
    call.kernel.window_left = window_left;
    call.slopes(alibi_slopes);
    call.run();
}

/// What the operators with a mask have in common behind their keys.
struct MaskParameters {
    double scale, soft_cap;
    bool causal;
    int64_t window_left, window_right;

    void hand_to(AttentionCall& call, const Maybe& slopes, const Maybe& mask) const {
        call.kernel.scale = static_cast<float>(scale);
        call.kernel.soft_cap = static_cast<float>(soft_cap);
        call.kernel.causal = causal;
        call.kernel.window_left = window_left;
        call.kernel.window_right = window_right;
        call.slopes(slopes);
        call.mask(mask);
    }
};

void paged_prefill_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                             const Tensor& cu_seqlens_q, const Tensor& kv_lengths, int64_t max_q_len, int64_t max_kv_len, const Tensor& attn_output,
                             double softmax_scale, bool causal, const Maybe& mask, const Maybe& alibi_slopes, int64_t window_left,
                             int64_t window_right, double soft_cap, const Maybe& kv_scales, const Maybe& kv_zeros, int64_t quant_bits) {
    constexpr auto name = "paged_prefill_attention";
    const auto queries = query_lengths(name, cu_seqlens_q, query.size(0));
    const Pages pages(name, key_cache, value_cache, block_table, kv_lengths);
    check_agreement(name, queries, pages.keys, max_q_len, mask ? mask->size(1) : -1, causal);
    pages.check(name, max_kv_len);
    if (!AttentionCall::takes(query, key_cache, value_cache, attn_output))
        return reference<void>(name, query, key_cache, value_cache, block_table, cu_seqlens_q, kv_lengths, max_q_len, max_kv_len, attn_output,
                               softmax_scale, causal, mask, alibi_slopes, window_left, window_right, soft_cap, kv_scales, kv_zeros, quant_bits);
    AttentionCall call(query, attn_output);
    pages.hand_to(call, kv_scales, kv_zeros, quant_bits);
    MaskParameters{softmax_scale, soft_cap, causal, window_left, window_right}.hand_to(call, alibi_slopes, mask);
    int64_t token = 0;
    for (size_t i = 0; i < queries.size(); token += queries[i++])
        add_sequence(call, token, queries[i], pages.keys[i], call.kernel.mask.stride, static_cast<int64_t>(i) * pages.table.stride);
    call.run();
}

// ---- fresh keys ----

void prefill_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cu_seqlens_q, const Tensor& kv_lengths,
                       int64_t max_q_len, const Tensor& attn_output, double softmax_scale, bool causal, const Maybe& mask, const Maybe& alibi_slopes,
                       int64_t window_left, int64_t window_right, double soft_cap) {
    constexpr auto name = "prefill_attention";
    const auto queries = query_lengths(name, cu_seqlens_q, query.size(0)), keys = checked_lengths(name, "kv_lengths", kv_lengths);
    unsigned __int128 sum = 0;
    for (const auto length : keys) sum += static_cast<uint64_t>(length);
    if (sum != static_cast<uint64_t>(key.size(0)))
        refuse(name, "kv_lengths", "add up to ", sum > INT64_MAX ? INT64_MAX : static_cast<int64_t>(sum), ", but key has ", key.size(0), " tokens");
    check_agreement(name, queries, keys, max_q_len, mask ? mask->size(1) : -1, causal);
    if (!AttentionCall::takes(query, key, value, attn_output))
        return reference<void>(name, query, key, value, cu_seqlens_q, kv_lengths, max_q_len, attn_output, softmax_scale, causal, mask, alibi_slopes,
                               window_left, window_right, soft_cap);
    AttentionCall call(query, attn_output);
    call.sides(key, value, FRESH, 0);
    MaskParameters{softmax_scale, soft_cap, causal, window_left, window_right}.hand_to(call, alibi_slopes, mask);
    int64_t token = 0, first = 0;
    for (size_t i = 0; i < queries.size(); token += queries[i], first += keys[i++]) {
        add_sequence(call, token, queries[i], keys[i], call.kernel.mask.stride, 0);
        call.sequences.back().key_offset = first * call.kernel.keys.token_stride;
        call.sequences.back().value_offset = first * call.kernel.values.token_stride;
    }
    call.run();
}

// ---- batches of equal lengths ----

/// [batch, length, heads, size] of all, as views.
void batched(AttentionCall& call, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& output, const MaskParameters& parameters,
             const Maybe& mask) {
    call.sides(key, value, {-1, 1, 2}, 0);
    const auto bytes = static_cast<int64_t>(key.element_size());
    for (int64_t i = 0; i < query.size(0); i++)
        call.sequences.push_back({query.size(1), key.size(1), i * query.stride(0), i * output.stride(0), 0, i * key.stride(0) * bytes,
                                  i * value.stride(0) * bytes, 0});
    parameters.hand_to(call, std::nullopt, mask);
    call.run();
}

Tensor fused_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& mask) {
    if (!AttentionCall::takes(query, key, value)) return reference<Tensor>("fused_attention", query, key, value, mask);
    auto result = at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options());
    AttentionCall call(query, result);
    batched(call, query, key, value, result, {std::pow(static_cast<double>(query.size(3)), -0.5), 0, !mask, -1, -1}, mask);
    return result;
}

Tensor incre_flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t num_heads, const std::string& input_layout,
                             double softmax_scale) {
    if (!AttentionCall::takes(query, key, value))
        return reference<Tensor>("incre_flash_attention", query, key, value, num_heads, input_layout, softmax_scale);
    auto q = query, k = key, v = value;
    if (input_layout == "BSH") {
        const int64_t kv_heads = key.size(-1) / (query.size(-1) / num_heads);
        q = query.unflatten(-1, {num_heads, query.size(-1) / num_heads});
        k = key.unflatten(-1, {kv_heads, key.size(-1) / kv_heads});
        v = value.unflatten(-1, {kv_heads, value.size(-1) / kv_heads});
    } else if (input_layout == "BNSD") {
        q = query.transpose(1, 2), k = key.transpose(1, 2), v = value.transpose(1, 2);
    }
    const bool swapped = input_layout == "BNSD";
    const auto result = at::empty({q.size(0), swapped ? q.size(2) : q.size(1), swapped ? q.size(1) : q.size(2), v.size(3)}, query.options());
    const auto rows = swapped ? result.transpose(1, 2) : result;
    AttentionCall call(q, rows);
    batched(call, q, k, v, rows, {softmax_scale, 0, false, -1, -1}, std::nullopt);
    return input_layout == "BSH" ? result.flatten(-2) : result;
}

}  // namespace

void bind_attention(pybind11::module_& module) {
    using pybind11::arg;
    const auto none = pybind11::none();
    module.def("paged_decode_attention", &paged_decode_attention, arg("query"), arg("key_cache"), arg("value_cache"), arg("block_table"),
               arg("kv_lengths"), arg("max_kv_len"), arg("attn_output"), arg("softmax_scale"), arg("alibi_slopes") = none, arg("window_left") = -1,
               arg("soft_cap") = 0.0, arg("kv_scales") = none, arg("kv_zeros") = none, arg("quant_bits") = 0);
    module.def("paged_prefill_attention", &paged_prefill_attention, arg("query"), arg("key_cache"), arg("value_cache"), arg("block_table"),
               arg("cu_seqlens_q"), arg("kv_lengths"), arg("max_q_len"), arg("max_kv_len"), arg("attn_output"), arg("softmax_scale"),
               arg("causal") = true, arg("mask") = none, arg("alibi_slopes") = none, arg("window_left") = -1, arg("window_right") = -1,
               arg("soft_cap") = 0.0, arg("kv_scales") = none, arg("kv_zeros") = none, arg("quant_bits") = 0);
    module.def("prefill_attention", &prefill_attention, arg("query"), arg("key"), arg("value"), arg("cu_seqlens_q"), arg("kv_lengths"),
               arg("max_q_len"), arg("attn_output"), arg("softmax_scale"), arg("causal") = true, arg("mask") = none, arg("alibi_slopes") = none,
               arg("window_left") = -1, arg("window_right") = -1, arg("soft_cap") = 0.0);
    module.def("fused_attention", &fused_attention, arg("query"), arg("key"), arg("value"), arg("mask") = none);
    module.def("incre_flash_attention", &incre_flash_attention, arg("query"), arg("key"), arg("value"), arg("num_heads"), arg("input_layout"),
               arg("softmax_scale"));
}

}  // namespace dlinfer
