// Checks of what tensors hold: lengths, block tables, slots. Kernels touch memory only behind these.
#pragma once
#include <c10/util/SmallVector.h>

#include <vector>

#include "arguments.h"

namespace dlinfer {

/// Raises ArgumentError with a text made of parts.
template <typename... Parts>
[[noreturn]] void refuse(const char* name, const char* argument, const Parts&... parts) {
    throw ArgumentError(name, argument, c10::str(parts...));
}

/// The numbers of an int32 or int64 tensor of one dimension, or of rows of two.
class Integers {
public:
    explicit Integers(const at::Tensor& tensor)
        : held_(tensor.dim() == 2 && tensor.size(1) > 1 && tensor.stride(1) != 1 ? tensor.contiguous() : tensor),
          data(readable(held_)),
          is_long(tensor.scalar_type() == at::kLong),
          stride(held_.dim() ? held_.stride(0) : 1) {}
    int64_t at(int64_t index) const {
        return is_long ? static_cast<const int64_t*>(data)[index] : static_cast<const int32_t*>(data)[index];
    }
    int64_t operator[](int64_t row) const { return at(row * stride); }

private:
    const at::Tensor held_;

public:
    const void* const data;
    const bool is_long;
    const int64_t stride;
};

using Lengths = c10::SmallVector<int64_t, 64>;

/// Lengths, none of which may be negative.
Lengths checked_lengths(const char* name, const char* argument, const at::Tensor& lengths);

/// The lengths between cumulative ones, [0, ..., tokens].
Lengths query_lengths(const char* name, const at::Tensor& cu_seqlens_q, int64_t tokens);

/// Lengths of queries beside lengths of keys, the announced maximum and the columns of the mask (-1: there is none).
void check_agreement(const char* name, const Lengths& queries, const Lengths& keys, int64_t max_q_len, int64_t mask_columns, bool causal);

/// Keys of the `queries` newest tokens of each sequence are counted too; a sequence of 0 keys is left out.
void check_newest(const char* name, int64_t queries, const Lengths& keys);

/// Every block that a length reaches must be in the table and in the cache.
void check_blocks(const char* name, const Integers& table, int64_t columns, const Lengths& keys, int64_t blocks, int64_t block_size);

void check_longest(const char* name, const Lengths& keys, int64_t max_kv_len);

/// Slots of a cache; -1 leaves a token out.
void check_slots(const char* name, const Integers& slots, int64_t tokens, int64_t count);

/// A scale or zero for all, for each head or for each element becomes one for each element, [heads, size].
std::vector<float> expanded(const at::Tensor& parameter, int64_t heads, int64_t size);

}  // namespace dlinfer
