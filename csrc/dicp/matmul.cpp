#include "matmul.h"

#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <array>

#include "blocked_product.h"
#include "../parallel/parallel_for.h"

extern "C" {
// Of the BLAS that torch was built with; none where that has other names, then ATen's own functions are called.
__attribute__((weak)) void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
                                  const int*, const float*, float*, const int*);
__attribute__((weak)) void dgemm_(const char*, const char*, const int*, const int*, const int*, const double*, const double*, const int*, const double*,
                                  const int*, const double*, double*, const int*);
}

namespace dicp {

/// A weight, or part of one, in the order in which kernels read it best.
struct PackedWeight {
    const void* b;
    int64_t k, n, b_row, b_column;
    std::shared_ptr<const Panels> panels;
};
// A weight that is changed is another constant: src/dicp/dynamo_bridge/freezing.py compiles anew.

namespace {

at::ScalarType dtype_of(const Matmul& product) {
    constexpr std::array types{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
    return types.at(product.dtype);
}

/// A matrix as BLAS takes it: column by column, or transposed.
struct Operand {
    bool transposed = false;
    int64_t stride = 1;
    bool fits = false;
};

/// Of `rows` x `columns` elements at these strides; BLAS reads it as its transpose.
Operand operand(int64_t rows, int64_t columns, int64_t row, int64_t column) {
    if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) return {false, std::max(rows == 1 ? columns : row, columns), true};
    if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) return {true, std::max(columns == 1 ? rows : column, rows), true};
    return {};
}

bool fits_int(int64_t number) { return number <= INT32_MAX; }

template <class T>
void gemm(char transpose_b, char transpose_a, const Matmul& p, int ldb, int lda, int ldo, const T* a, const T* b, T beta, T* out) {
    const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
    const T one = 1;
    if constexpr (std::is_same_v<T, float>)
        sgemm_(&transpose_b, &transpose_a, &n, &m, &k, &one, b, &ldb, a, &lda, &beta, out, &ldo);
    else
        dgemm_(&transpose_b, &transpose_a, &n, &m, &k, &one, b, &ldb, a, &lda, &beta, out, &ldo);
}

/// Whether BLAS could be called with these strides; it was.
template <class T>
bool blas(const Matmul& p) {
    const auto a = operand(p.m, p.k, p.a_row, p.a_column), b = operand(p.k, p.n, p.b_row, p.b_column);
    const int64_t ldo = std::max(p.out_row, p.n);
    if (!a.fits || !b.fits || (p.out_row < p.n && p.m > 1)) return false;
    for (const int64_t number : {p.m, p.n, p.k, a.stride, b.stride, ldo})
        if (!fits_int(number)) return false;
    const auto one = [&](int64_t number) {
        const auto* left = static_cast<const T*>(p.a) + number * p.a_batch;
        const auto* right = static_cast<const T*>(p.b) + number * p.b_batch;
        auto* out = static_cast<T*>(p.out) + number * p.out_batch;
        if (p.bias)
            for (int64_t row = 0; row < p.m; ++row) std::copy_n(static_cast<const T*>(p.bias), p.n, out + row * p.out_row);
        gemm<T>(b.transposed ? 'T' : 'N', a.transposed ? 'T' : 'N', p, static_cast<int>(b.stride), static_cast<int>(a.stride), static_cast<int>(ldo), left,
                right, p.bias ? T(1) : T(0), out);
    };
    // BLAS runs on one thread inside torch's parallel regions.
    if (p.batch > 1 && p.batch >= at::get_num_threads())
        ditorch::parallel_for(0, p.batch, 1, [&](int64_t begin, int64_t end) {
            for (const auto i : c10::irange(begin, end)) one(i);
        });
    else
        for (const auto i : c10::irange(p.batch)) one(i);
    return true;
}

at::Tensor matrices(const void* data, at::ScalarType type, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return at::from_blob(const_cast<void*>(data), sizes, strides, at::TensorOptions(type));
}

void aten(const Matmul& p) {
    const auto type = dtype_of(p);
    const auto a = matrices(p.a, type, {p.batch, p.m, p.k}, {p.a_batch, p.a_row, p.a_column});
    const auto b = matrices(p.b, type, {p.batch, p.k, p.n}, {p.b_batch, p.b_row, p.b_column});
    auto out = matrices(p.out, type, {p.batch, p.m, p.n}, {p.out_batch, p.out_row, 1});
    if (p.batch == 1) {
        auto result = out[0];
        if (p.bias)
            at::addmm_out(result, matrices(p.bias, type, {p.n}, {1}), a[0], b[0]);
        else
            at::mm_out(result, a[0], b[0]);
    } else if (p.bias) {
        at::baddbmm_out(out, matrices(p.bias, type, {p.batch, p.m, p.n}, {0, 0, 1}), a, b);
    } else {
        at::bmm_out(out, a, b);
    }
}

/// The sum of no products.
void fill(const Matmul& p) {
    const auto type = dtype_of(p);
    auto out = matrices(p.out, type, {p.batch, p.m, p.n}, {p.out_batch, p.out_row, 1});
    if (p.bias)
        out.copy_(matrices(p.bias, type, {p.n}, {1}));
    else
        out.zero_();
}

}  // namespace

void multiply(const Matmul& p, const PackedWeight* weight) {
    if (p.batch == 0 || p.m == 0 || p.n == 0) return;
    if (p.k == 0) return fill(p);
    if (weight) return multiply_blocked(p, weight->panels.get());
    if (multiply_few_rows(p)) return;
    if (p.dtype == kMatmulFloat32 && blocked_is_faster(p)) return multiply_blocked(p, nullptr);
    if (p.dtype == kMatmulFloat32 && sgemm_ && blas<float>(p)) return;
    if (p.dtype == kMatmulFloat64 && dgemm_ && blas<double>(p)) return;
    aten(p);
}

const PackedWeight* packed_weight(Plan& plan, const Matmul& p) {
    if (!panels_are_faster(p) || p.n == 0 || p.k == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(plan.packing);
    auto& known = plan.packed.at(p.weight);
    for (const auto& one : known)
        if (one->b == p.b && one->k == p.k && one->n == p.n && one->b_row == p.b_row && one->b_column == p.b_column) return one.get();
    known.push_back(std::make_shared<const PackedWeight>(PackedWeight{p.b, p.k, p.n, p.b_row, p.b_column, packed_panels(p)}));
    return known.back().get();
}

}  // namespace dicp
