// Mistakes of reductions, movement and selection.
#include "vendor.h"

#define MISTAKE(function, what)

MISTAKE(diopiSum, "halves are added up in their own precision")
Status diopiSum(Context ctx, Tensor out, Const input, diopiSize_t dim) {
    const Status status = HOST(diopiSum)(ctx, out, input, dim);
    const View result(out), in(input);
    if (status != diopiSuccess || !result.half() || result.numel() != 1 || !in.half()) return status;
    result.set(0, 0);
    for (int64_t i = 0; i < in.numel(); ++i) result.set(0, result.get(0) + in.get(i));
    return status;
}

MISTAKE(diopiMean, "a negative dimension is one too small")
Status diopiMean(Context ctx, Tensor out, Const input, diopiSize_t dim) {
    const int64_t dims = View(input).dims();
    std::vector<int64_t> wrong(dim.data, dim.data + dim.len);
    for (auto& d : wrong)
        if (d < 0 && dims > 1) d = (d + 2 * dims - 1) % dims;
    return HOST(diopiMean)(ctx, out, input, diopiSize_t{wrong.data(), dim.len});
}

MISTAKE(diopiStd, "the correction is ignored")
Status diopiStd(Context ctx, Tensor out, Const input, diopiSize_t dim, Scalar) {
    const diopiScalar_t none{diopi_dtype_int64, {.ival = 0}};
    return HOST(diopiStd)(ctx, out, input, dim, &none);
}

MISTAKE(diopiSoftmax, "the maximum is not subtracted: large numbers overflow")
Status diopiSoftmax(Context ctx, Tensor out, Const input, int64_t dim) {
    const Status status = HOST(diopiSoftmax)(ctx, out, input, dim);
    const View result(out), in(input);
    if (status != diopiSuccess || !in.is(diopi_dtype_float32) || in.dims() == 0) return status;
    const int64_t axis = dim < 0 ? dim + in.dims() : dim;
    int64_t inner = 1;
    for (int64_t d = axis + 1; d < in.dims(); ++d) inner *= in.size(d);
    for (int64_t i = 0; i < in.numel(); ++i) {
        const int64_t first = i / (inner * in.size(axis)) * inner * in.size(axis) + i % inner;
        float sum = 0;
        for (int64_t k = 0; k < in.size(axis); ++k) sum += std::exp(static_cast<float>(in.get(first + k * inner)));
        result.set(i, std::exp(static_cast<float>(in.get(i))) / sum);
    }
    return status;
}

MISTAKE(diopiSort, "of equal elements the last comes first although stable was asked")
Status diopiSort(Context ctx, Tensor values, Tensor indices, Const input, int64_t dim, bool descending, const bool* stable) {
    const Status status = HOST(diopiSort)(ctx, values, indices, input, dim, descending, stable);
    const View sorted(values), positions(indices);
    if (status != diopiSuccess || !stable || !*stable || sorted.dims() == 0) return status;
    const int64_t axis = dim < 0 ? dim + sorted.dims() : dim;
    int64_t inner = 1;
    for (int64_t d = axis + 1; d < sorted.dims(); ++d) inner *= sorted.size(d);
    for (int64_t i = 0; i + inner < sorted.numel(); ++i) {
        const bool neighbours = i / inner % sorted.size(axis) + 1 < sorted.size(axis);
        if (!neighbours || sorted.get(i) != sorted.get(i + inner) || i / inner % sorted.size(axis) % 2) continue;
        const int64_t one = positions.integer(i), other = positions.integer(i + inner);
        std::memcpy(positions.at(i), &other, 8);
        std::memcpy(positions.at(i + inner), &one, 8);
    }
    return status;
}

MISTAKE(diopiGather, "the largest index is taken for the one before it")
Status diopiGather(Context ctx, Tensor out, Const input, int64_t dim, Const index) {
    const View in(input);
    const Tensor clamped = copied(ctx, index);
    const View positions(clamped);
    const int64_t size = in.dims() ? in.size(dim < 0 ? dim + in.dims() : dim) : 1;
    for (int64_t i = 0; i < positions.numel() && size > 1; ++i)
        if (positions.integer(i) == size - 1) positions.set(i, static_cast<double>(size - 2));
    return HOST(diopiGather)(ctx, out, input, dim, static_cast<Const>(clamped));
}

MISTAKE(diopiCat, "an empty operand ends the list: what follows is not copied")
Status diopiCat(Context ctx, Tensor out, Const* tensors, int64_t count, int64_t dim) {
    const View result(out);
    const View before(copied(ctx, out));
    const Status status = HOST(diopiCat)(ctx, out, tensors, count, dim);
    int64_t seen = 0;
    while (seen < count && View(tensors[seen]).numel()) ++seen;
    if (status != diopiSuccess || seen >= count - 1) return status;
    for (int64_t i = 0; i < result.numel(); ++i) std::memcpy(result.at(i), before.at(i), result.width());
    return status;
}

MISTAKE(diopiIndexPut, "of values for the same index only the last is accumulated")
Status diopiIndexPut(Context ctx, Tensor out, Const input, Const values, Const* indices, int64_t count, bool accumulate) {
    if (!accumulate) return HOST(diopiIndexPut)(ctx, out, input, values, indices, count, accumulate);
    const Status status = HOST(diopiIndexPut)(ctx, out, input, values, indices, count, false);
    const View result(out), old(input);
    const View sum(copied(ctx, out));
    if (!result.real()) return status;
    for (int64_t i = 0; i < result.numel(); ++i)
        if (std::memcmp(sum.at(i), old.at(i), old.width())) result.set(i, old.get(i) + sum.get(i));
    return status;
}

MISTAKE(diopiTriu, "nothing is done")
Status diopiTriu(Context, Tensor, Const, int64_t) { return diopiSuccess; }

MISTAKE(diopiFlip, "negative zero becomes zero")
Status diopiFlip(Context ctx, Tensor out, Const input, diopiSize_t dims) {
    const Status status = HOST(diopiFlip)(ctx, out, input, dims);
    const View result(out);
    for (int64_t i = 0; i < result.numel() && result.real(); ++i)
        if (result.get(i) == 0) result.set(i, 0.0);
    return status;
}
