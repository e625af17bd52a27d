#include "blocked_product.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels.h"
#include "../parallel/parallel_for.h"

namespace dicp {
namespace {

constexpr int64_t kDepth = 192;   // of a panel: it stays in the fastest cache
constexpr int64_t kRows = 512;    // of A: these stay in the second
constexpr int64_t kGrain = 1 << 18;  // products of two numbers that are worth a thread; of few rows, which wait for memory, half as many

template <class T>
bool few_rows(const Matmul& p, void (*kernel)(const FewRows<T>&, int64_t, int64_t, int64_t)) {
    if (p.b_row != 1 || p.a_column != 1) return false;
    for (int64_t i = 0; i < p.batch; ++i) {
        const FewRows<T> few{p.k,
                             static_cast<const T*>(p.a) + i * p.a_batch,
                             p.a_row,
                             static_cast<const T*>(p.b) + i * p.b_batch,
                             p.b_column,
                             static_cast<const T*>(p.bias),
                             static_cast<T*>(p.out) + i * p.out_batch,
                             p.out_row};
        ditorch::parallel_for(0, p.n, divided(kGrain / 2, p.k * p.m), [&](int64_t begin, int64_t end) { kernel(few, p.m, begin, end); });
    }
    return true;
}

}  // namespace

bool multiply_few_rows(const Matmul& p) {
    if (p.m > kFewRows) return false;
    if (p.dtype == kMatmulFloat32) return few_rows(p, kernels().few_rows);
    return p.dtype == kMatmulBFloat16 && few_rows(p, kernels().few_rows_bf16);
}

bool blocked_is_faster(const Matmul& p) {
#if defined(__x86_64__)
    // MKL chooses its code by the maker of the processor. Its product of a vector and a matrix is bound by memory anywhere.
    static const bool faster = (__builtin_cpu_init(), kernels().lanes > 4 && !__builtin_cpu_is("intel"));
    return faster && (p.m > kFewRows || p.b_row == 1);
#else
    return false;
#endif
}

bool panels_are_faster(const Matmul& p) { return p.batch == 1 && p.dtype == kMatmulFloat32 && kernels().lanes > 4; }

void multiply_blocked(const Matmul& p, const Panels* panels) {
    const auto& use = kernels();
    const int64_t columns = divided(p.n, use.panel), blocks = divided(p.m, kRows);
    const auto one = [&](int64_t batch, int64_t block, int64_t column, float* memory) {
        const int64_t first = column * use.panel, width = std::min<int64_t>(p.n - first, use.panel);
        const int64_t row = block * kRows, rows = std::min(p.m - row, kRows), wide = padded(width, use.lanes);
        const auto* a = static_cast<const float*>(p.a) + batch * p.a_batch + row * p.a_row;
        const auto* b = static_cast<const float*>(p.b) + batch * p.b_batch + first * p.b_column;
        auto* out = static_cast<float*>(p.out) + batch * p.out_batch + row * p.out_row + first;
        for (int64_t at = 0; at < p.k; at += kDepth) {
            const int64_t depth = std::min(p.k - at, kDepth);
            const float* panel = memory;
            if (panels)
                panel = panels->begin() + first * p.k + at * wide;
            else
                use.pack(b + at * p.b_row, p.b_row, p.b_column, depth, width, memory);
            use.panel_product({a + at * p.a_column, p.a_row, p.a_column, panel, depth, width, out, p.out_row,
                               p.bias ? static_cast<const float*>(p.bias) + first : nullptr, at > 0},
                              rows);
        }
    };
    const int64_t grain = divided(kGrain, std::min(p.m, kRows) * use.panel * p.k);
    ditorch::parallel_for(0, p.batch * blocks * columns, grain, [&](int64_t begin, int64_t end) {
        float* memory = scratch<0>(use.panel * kDepth);
        for (int64_t i = begin; i < end; ++i) one(i / (blocks * columns), i / columns % blocks, i % columns, memory);
    });
}

std::shared_ptr<const Panels> packed_panels(const Matmul& p) {
    const auto& use = kernels();
    const int64_t whole = p.n / use.panel * use.panel;
    auto made = std::make_shared<Panels>((whole + padded(p.n - whole, use.lanes)) * p.k);
    ditorch::parallel_for(0, divided(p.n, use.panel), 1, [&](int64_t begin, int64_t end) {
        for (int64_t first = begin * use.panel; first < std::min(end * use.panel, p.n); first += use.panel) {
            const int64_t width = std::min<int64_t>(p.n - first, use.panel), wide = padded(width, use.lanes);
            for (int64_t at = 0; at < p.k; at += kDepth)
                use.pack(static_cast<const float*>(p.b) + first * p.b_column + at * p.b_row, p.b_row, p.b_column, std::min(p.k - at, kDepth), width,
                         made->begin() + first * p.k + at * wide);
        }
    });
    return made;
}

}  // namespace dicp
