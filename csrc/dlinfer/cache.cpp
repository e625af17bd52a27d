// Writing keys and values into caches.
#include "kernels/cache.h"

#include <torch/csrc/utils/pybind.h>

#include <tuple>
#include <vector>

#include "paging.h"
#include "bindings.h"

namespace dlinfer {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

/// Key or value beside its cache.
void fill_side(const Tensor& states, const Tensor& cache, const Integers& slots, const Maybe& scale, const Maybe& zero, int64_t bits) {
    const auto bytes = static_cast<int64_t>(states.element_size()), cell = static_cast<int64_t>(cache.element_size());
    Filling given{};
    given.tokens = states.size(0), given.heads = states.size(1), given.size = states.size(2), given.block_size = cache.size(1);
    std::vector<float> scales, zeros;
    if (bits) {
        scales = expanded(*scale, given.heads, given.size);
        if (zero) zeros = expanded(*zero, given.heads, given.size);
        given.scales = scales.data();
        given.zeros = zero ? zeros.data() : nullptr;
        given.dtype = dtype_of(states.scalar_type());
        given.stored = bits == 4 ? CacheElement::u4 : cache.scalar_type() == at::kChar ? CacheElement::i8 : CacheElement::u8;
    }
    given.element = bytes;
    given.states = readable<char>(states);
    given.token_stride = states.stride(0) * bytes, given.head_stride = states.stride(1) * bytes;
    given.cache = writable<char>(cache);
    given.block_stride = cache.stride(0) * cell, given.place_stride = cache.stride(1) * cell, given.cache_head_stride = cache.stride(2) * cell;
    given.slots = slots.data, given.slots_are_long = slots.is_long, given.slots_stride = slots.stride;
    DLINFER_PICK(fill_cache)(given);
}

void fill_kv_cache(const Tensor& key, const Tensor& key_cache, const Maybe& value, const Maybe& value_cache, const Tensor& kv_indices,
                   const Maybe& key_scale, const Maybe& key_zero, const Maybe& value_scale, const Maybe& value_zero, int64_t quant_bits) {
    constexpr auto name = "fill_kv_cache";
    const Integers slots(kv_indices);
    check_slots(name, slots, key.size(0), key_cache.size(0) * key_cache.size(1));
    const bool dense = has_dense_rows(key) && has_dense_rows(key_cache) && (!value || has_dense_rows(*value)) && (!value_cache || has_dense_rows(*value_cache));
    const bool read = has_dtype(key.scalar_type()) && (!value || has_dtype(value->scalar_type()));
    if (!dense || (quant_bits && !read))
        return reference<void>(name, key, key_cache, value, value_cache, kv_indices, key_scale, key_zero, value_scale, value_zero, quant_bits);
    fill_side(key, key_cache, slots, key_scale, key_zero, quant_bits);
    if (value && value_cache) fill_side(*value, *value_cache, slots, value_scale, value_zero, quant_bits);
}

Tensor longer(const Tensor& cache, const Tensor& state) {
    auto result = at::empty({cache.size(0), cache.size(1) + state.size(1), cache.size(2), cache.size(3)}, cache.options());
    const auto bytes = static_cast<int64_t>(cache.element_size()), whole = result.stride(0) * bytes;
    char* to = writable<char>(result);
    for (const auto& part : {cache.contiguous(), state.contiguous()}) {
        const int64_t row = part.size(1) * part.size(2) * part.size(3) * bytes;
        DLINFER_PICK(copy_rows)({readable<char>(part), to, part.size(0), row, row, whole});
        to += row;
    }
    return result;
}

std::tuple<Tensor, Tensor> fill_contiguous_kvcache(const Tensor& key_cache, const Tensor& value_cache, const Tensor& key_state,
                                                   const Tensor& value_state) {
    return {longer(key_cache, key_state), longer(value_cache, value_state)};
}

int64_t get_cache_len(const Tensor& cache) { return cache.size(1); }

}  // namespace

void bind_cache(pybind11::module_& module) {
    using pybind11::arg;
    const auto none = pybind11::none();
    module.def("fill_kv_cache", &fill_kv_cache, arg("key"), arg("key_cache"), arg("value"), arg("value_cache"), arg("kv_indices"),
               arg("key_scale") = none, arg("key_zero") = none, arg("value_scale") = none, arg("value_zero") = none, arg("quant_bits") = 0);
    module.def("fill_contiguous_kvcache", &fill_contiguous_kvcache, arg("key_cache"), arg("value_cache"), arg("key_state"), arg("value_state"));
    module.def("get_cache_len", &get_cache_len, arg("cache"));
}

}  // namespace dlinfer
