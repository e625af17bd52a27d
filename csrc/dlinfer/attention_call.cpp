#include "attention_call.h"

namespace dlinfer {
namespace {

CacheElement stored_as(const at::Tensor& cache, int64_t bits) {
    if (bits == 4) return CacheElement::u4;
    if (bits == 8) return cache.scalar_type() == at::kChar ? CacheElement::i8 : CacheElement::u8;
    const Kind kind = kind_of(cache.scalar_type());
    return kind == Kind::f32 ? CacheElement::f32 : kind == Kind::bf16 ? CacheElement::bf16 : CacheElement::f16;
}

Side side_of(const at::Tensor& cache, const SideForm& form, int64_t bits) {
    const auto bytes = static_cast<int64_t>(cache.element_size());
    return {static_cast<const char*>(readable(cache)),
            stored_as(cache, bits),
            cache.size(-1) * (bits == 4 ? 2 : 1),
            form.block_dim < 0 ? 0 : cache.stride(form.block_dim) * bytes,
            cache.stride(form.token_dim) * bytes,
            cache.stride(form.head_dim) * bytes,
            nullptr,
            nullptr};
}

}  // namespace

AttentionCall::AttentionCall(const at::Tensor& query, const at::Tensor& output) {
    kernel.query = readable(query);
    kernel.output = writable(output);
    kernel.kind = kind_of(query.scalar_type());
    kernel.query_token = query.stride(-3);
    kernel.query_head = query.stride(-2);
    kernel.output_token = output.stride(-3);
    kernel.output_head = output.stride(-2);
    kernel.heads = query.size(-2);
    kernel.window_left = kernel.window_right = -1;
}

void AttentionCall::sides(const at::Tensor& key, const at::Tensor& value, const SideForm& form, int64_t bits) {
    kernel.keys = side_of(key, form, bits);
    kernel.values = side_of(value, form, bits);
    kernel.kv_heads = key.size(form.head_dim);
}

void AttentionCall::quantised(const at::Tensor& scales, const std::optional<at::Tensor>& zeros) {
    key_scales_ = spread(scales.select(0, 0), kernel.kv_heads, kernel.keys.size);
    value_scales_ = spread(scales.select(0, 1), kernel.kv_heads, kernel.values.size);
    kernel.keys.scales = key_scales_.data();
    kernel.values.scales = value_scales_.data();
    if (!zeros) return;
    key_zeros_ = spread(zeros->select(0, 0), kernel.kv_heads, kernel.keys.size);
    value_zeros_ = spread(zeros->select(0, 1), kernel.kv_heads, kernel.values.size);
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

}  // namespace dlinfer
