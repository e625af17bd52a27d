#include "paging.h"

#include <algorithm>

namespace dlinfer {
namespace {

[[noreturn]] void refuse_fewer(const char* name, size_t sequence, int64_t keys, int64_t queries) {
    refuse(name, "kv_lengths", "element ", sequence, " is ", keys, ", less than its ", queries, " query tokens; keys of the queries are counted too");
}

int64_t longest(const Lengths& lengths) { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }

}  // namespace

Lengths checked_lengths(const char* name, const char* argument, const at::Tensor& lengths) {
    const Integers given(lengths);
    Lengths found(static_cast<size_t>(lengths.size(0)));
    for (size_t i = 0; i < found.size(); i++) {
        found[i] = given[static_cast<int64_t>(i)];
        if (found[i] < 0) refuse(name, argument, "element ", i, " is ", found[i], ", expected at least 0");
    }
    return found;
}

Lengths query_lengths(const char* name, const at::Tensor& cu_seqlens_q, int64_t tokens) {
    const Integers ends(cu_seqlens_q);
    const auto sequences = static_cast<size_t>(cu_seqlens_q.size(0) - 1);
    if (ends[0] != 0) refuse(name, "cu_seqlens_q", "begins with ", ends[0], ", expected 0");
    Lengths found(sequences);
    int64_t before = 0;
    for (size_t i = 0; i < sequences; i++) {
        const int64_t end = ends[static_cast<int64_t>(i) + 1];
        if (end < before) refuse(name, "cu_seqlens_q", "falls from ", before, " to ", end, " at element ", i + 1, "; cumulative lengths never fall");
        found[i] = end - before;
        before = end;
    }
    if (before != tokens) refuse(name, "cu_seqlens_q", "ends with ", before, ", but query has ", tokens, " tokens");
    return found;
}

void check_agreement(const char* name, const Lengths& queries, const Lengths& keys, int64_t max_q_len, int64_t mask_columns, bool causal) {
    const int64_t most = longest(queries);
    if (0 < max_q_len && max_q_len < most) refuse(name, "max_q_len", "is ", max_q_len, ", but a sequence has ", most, " query tokens");
    for (size_t i = 0; causal && i < keys.size(); i++)
        if (keys[i] < queries[i]) refuse_fewer(name, i, keys[i], queries[i]);
    if (mask_columns >= 0 && mask_columns < longest(keys))
        refuse(name, "mask", "has ", mask_columns, " columns, but a sequence has ", longest(keys), " keys");
}

void check_newest(const char* name, int64_t queries, const Lengths& keys) {
    for (size_t i = 0; i < keys.size(); i++)
        if (0 < keys[i] && keys[i] < queries) refuse_fewer(name, i, keys[i], queries);
}

void check_blocks(const char* name, const Integers& table, int64_t columns, const Lengths& keys, int64_t blocks, int64_t block_size) {
    for (size_t row = 0; row < keys.size(); row++) {
        const int64_t used = keys[row] / block_size + (keys[row] % block_size != 0);
        if (used > columns)
            refuse(name, "kv_lengths", "element ", row, " is ", keys[row], ", but ", columns, " blocks of ", block_size, " in block_table hold ",
                   columns * block_size);
        const int64_t first = static_cast<int64_t>(row) * table.stride;
        for (int64_t column = 0; column < used; column++) {
            const int64_t block = table.at(first + column);
            if (block < 0 || block >= blocks)
                refuse(name, "block_table", "[", row, ", ", column, "] is ", block, ", expected 0 to ", blocks - 1, ": the cache has ", blocks,
                       " blocks");
        }
    }
}

void check_longest(const char* name, const Lengths& keys, int64_t max_kv_len) {
    if (0 < max_kv_len && max_kv_len < longest(keys)) refuse(name, "max_kv_len", "is ", max_kv_len, ", but a sequence has ", longest(keys), " keys");
}

void check_slots(const char* name, const Integers& slots, int64_t tokens, int64_t count) {
    for (int64_t i = 0; i < tokens; i++)
        if (slots[i] < -1 || slots[i] >= count)
            refuse(name, "kv_indices", "holds ", slots[i], ", expected 0 to ", count - 1, " (slots of the cache) or -1 (left out)");
}

std::vector<float> expanded(const at::Tensor& parameter, int64_t heads, int64_t size) {
    const auto numbers = parameter.to(at::kFloat).contiguous();
    const auto* from = readable<float>(numbers);
    std::vector<float> all(static_cast<size_t>(heads * size));
    for (int64_t i = 0; i < heads * size; i++) all[static_cast<size_t>(i)] = from[numbers.numel() == 1 ? 0 : numbers.numel() == heads ? i / size : i];
    return all;
}

}  // namespace dlinfer
