// Tensors of attention as the kernel takes them.
#pragma once
#include <optional>
#include <vector>

#include "attention_values.h"
#include "forms.h"
#include "kernels/attention.h"

namespace dlinfer {

/// Which dimensions of keys or values are blocks (-1: none), tokens and heads; the last one is elements.
struct SideForm {
    int64_t block_dim, token_dim, head_dim;
};
constexpr SideForm PAGED{0, 1, 2}, FRESH{-1, 0, 1};

/// One call: everything that the kernel points to lives here until it has run.
class AttentionCall {
public:
    AttentionCall(const at::Tensor& query, const at::Tensor& output);
    AttentionCall(const AttentionCall&) = delete;
    AttentionCall& operator=(const AttentionCall&) = delete;

    /// Whether the kernel reads and writes these as they lie.
    template <typename... Tensors>
    static bool takes(const at::Tensor& query, const Tensors&... others) {
        return has_kind(query.scalar_type()) && takes_rows(query) && (takes_rows(others) && ...);
    }

    void sides(const at::Tensor& key, const at::Tensor& value, const SideForm& form, int64_t bits);
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

}  // namespace dlinfer
