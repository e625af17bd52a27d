// Matrix products, convolutions and pooling in another order.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/col2im.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel.h"
#include "reordered.h"

namespace dipu_vendor::split_sums {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Sizes = std::vector<int64_t>;

// Where the inner dimension of a product is cut: long ones in blocks about as long as a CPU's own, but never the same; short
// ones in two unequal parts, since a CPU may halve them and a sum of two has only one order.
int64_t product_block(int64_t inner) {
    constexpr int64_t kBlock = 208;
    return inner > 2 * kBlock ? kBlock : std::max<int64_t>((5 * inner + 4) / 8, 1);
}

}  // namespace

Tensor blocked_matmul(const Tensor& a, const Tensor& b, int64_t block) {
    const Tensor left = upcast(a), right = upcast(b);
    const int64_t inner = a.size(-1);
    if (block == 0) block = product_block(inner);
    const auto multiply = [](const Tensor& x, const Tensor& y) { return x.dim() == 2 ? x.mm(y) : x.bmm(y); };
    Tensor total;
    for (int64_t start = (inner - 1) / block * block; start >= 0 && inner > 0; start -= block) {
        const int64_t length = std::min(block, inner - start);
        const Tensor part = multiply(left.narrow(-1, start, length), right.narrow(-2, start, length));
        total = total.defined() ? total.add_(part) : part;
    }
    return total.defined() ? total : multiply(left, right);  // nothing to add up: zeros
}

void addmm(Tensor& out, const OptionalTensor& input, const Tensor& a, const Tensor& b, double beta, double alpha) {
    if (at::isIntegralType(out.scalar_type(), true)) {  // as ATen: of whole numbers, by whole numbers
        beta = std::trunc(beta);
        alpha = std::trunc(alpha);
    }
    const auto accumulated = out.options().dtype(at::toOpMathType(out.scalar_type()));
    Tensor total = alpha == 0 ? at::zeros(out.sizes(), accumulated) : blocked_matmul(a, b);
    if (alpha != 1 && alpha != 0) total = total * alpha;
    if (input && beta != 0) total = total + (beta == 1 ? upcast(*input) : upcast(*input) * beta);
    out.copy_(total);
}

namespace {

// A convolution as matrix products over [groups, channels of a group x kernel, samples x positions], some samples at a time.
struct Columns {
    const Convolution& how;
    IntArrayRef kernel;

    Sizes image(const Tensor& x) const { return {x.size(2), x.size(3)}; }
    Tensor by_group(const Tensor& x) const {  // [samples, groups * a, positions] -> [groups, a, samples * positions]
        const int64_t a = x.size(1) / how.groups;
        return x.reshape({x.size(0), how.groups, a, -1}).permute({1, 2, 0, 3}).reshape({how.groups, a, -1});
    }
    Tensor by_sample(const Tensor& x, int64_t samples) const {  // and back
        return x.reshape({how.groups, x.size(1), samples, -1})
            .permute({2, 0, 1, 3})
            .reshape({samples, how.groups * x.size(1), -1});
    }
    Tensor unfold(const Tensor& x) const { return by_group(at::im2col(x, kernel, how.dilation, how.padding, how.stride)); }
    Tensor fold(const Tensor& columns, const Tensor& like) const {
        return at::col2im(by_sample(columns, like.size(0)), image(like), kernel, how.dilation, how.padding, how.stride);
    }
    // So many samples that their columns stay below some 64 MB.
    int64_t samples_at_once(const Tensor& x, const Tensor& out) const {
        const int64_t columns = x.size(1) * kernel[0] * kernel[1] * out.size(2) * out.size(3);
        return std::max<int64_t>(1, (int64_t{1} << 24) / std::max<int64_t>(columns, 1));
    }
};

Tensor weight_matrix(const Tensor& weight, int64_t groups) { return upcast(weight).reshape({groups, weight.size(0) / groups, -1}); }

}  // namespace

void convolution2d(Tensor& out, const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Convolution& how) {
    const Columns columns{how, weight.sizes().slice(2)};
    const Tensor w = weight_matrix(weight, how.groups);
    const int64_t step = columns.samples_at_once(x, out), channels[] = {1, weight.size(0), 1, 1};
    for (int64_t start = 0; start < x.size(0); start += step) {
        const int64_t samples = std::min(step, x.size(0) - start);
        Tensor target = out.narrow(0, start, samples);
        const Tensor product = blocked_matmul(w, columns.unfold(upcast(x.narrow(0, start, samples))));
        const Tensor result = columns.by_sample(product, samples).reshape(target.sizes());
        target.copy_(bias ? result + upcast(*bias).reshape(channels) : result);
    }
}

void convolution2d_backward(Tensor& grad_input, Tensor& grad_weight, Tensor& grad_bias, const Tensor& grad_output,
                            const Tensor& x, const Tensor& weight, const Convolution& how) {
    const Columns columns{how, weight.sizes().slice(2)};
    constexpr int64_t kPlaces = 40;  // CPUs keep many short sums for this gradient, one for each image or row of it
    const Tensor transposed = weight_matrix(weight, how.groups).transpose(1, 2);
    const int64_t step = columns.samples_at_once(x, grad_output);
    Tensor weight_total;
    for (int64_t start = 0; start < x.size(0); start += step) {
        const int64_t samples = std::min(step, x.size(0) - start);
        const Tensor v = upcast(x.narrow(0, start, samples));
        const Tensor g = columns.by_group(upcast(grad_output.narrow(0, start, samples)).flatten(2));
        if (grad_input.defined()) grad_input.narrow(0, start, samples).copy_(columns.fold(blocked_matmul(transposed, g), v));
        if (!grad_weight.defined()) continue;
        const Tensor part = blocked_matmul(g, columns.unfold(v).transpose(1, 2), kPlaces);
        weight_total = weight_total.defined() ? part + weight_total : part;
    }
    if (grad_weight.defined()) grad_weight.copy_(weight_total.reshape(weight.sizes()));
    if (grad_bias.defined()) grad_bias.copy_(blocked_sum(grad_output, {0, 2, 3}, false));
}

namespace {

// What one output coordinate covers of an axis of the image, and how many positions it counts for.
struct Window {
    int64_t begin, end, counted;
};
using Windows = std::vector<Window>;

Windows sliding(int64_t outputs, int64_t length, int64_t kernel, int64_t stride, int64_t padding, bool count_padding) {
    Windows windows;
    for (int64_t i = 0; i < outputs; ++i) {
        const int64_t begin = i * stride - padding, end = std::min(begin + kernel, length + padding);
        const Window inside{std::max<int64_t>(begin, 0), std::min(end, length), 0};
        windows.push_back({inside.begin, inside.end, count_padding ? end - begin : inside.end - inside.begin});
    }
    return windows;
}

Windows adaptive(int64_t outputs, int64_t length) {
    Windows windows;
    for (int64_t i = 0; i < outputs; ++i) {
        const int64_t begin = i * length / outputs, end = ((i + 1) * length + outputs - 1) / outputs;
        windows.push_back({begin, end, end - begin});
    }
    return windows;
}

struct Grid {
    Windows rows, columns;
    int64_t divisor;  // 0: the positions counted

    double share(int64_t row, int64_t column) const {
        if (divisor) return static_cast<double>(divisor);  // also a negative one
        const int64_t positions = rows[row].counted * columns[column].counted;
        return static_cast<double>(std::max<int64_t>(positions, 1));  // a window outside the image sums to 0
    }
};

Grid grid(const Tensor& image, const Tensor& out, const Pooling& how) {
    const auto at_axis = [](const auto& sizes, int axis) { return sizes.size() == 1 ? sizes[0] : sizes[axis]; };
    const auto axis = [&](int i) {
        const auto& stride = how.stride.empty() ? how.kernel : how.stride;
        return sliding(out.size(i - 2), image.size(i - 2), at_axis(how.kernel, i), at_axis(stride, i), at_axis(how.padding, i),
                       how.count_include_pad);
    };
    return {axis(0), axis(1), how.divisor.value_or(0)};
}

// Windows are added up column by column from the right, where the CPU goes along the rows.
void pool(Tensor& out, const Tensor& image, const Grid& grid) {
    const Tensor from = upcast(image).contiguous(), to = at::zeros(out.sizes(), from.options());
    const int64_t height = image.size(-2), width = image.size(-1), positions = out.size(-2) * out.size(-1);
    AT_DISPATCH_FLOATING_TYPES(from.scalar_type(), "reordered_pool", [&] {
        const scalar_t* in = from.const_data_ptr<scalar_t>();
        scalar_t* result = to.data_ptr<scalar_t>();
        at::parallel_for(0, positions ? to.numel() / positions : 0, 1, [&](int64_t first, int64_t last) {
            for (int64_t plane = first; plane < last; ++plane) {
                for (int64_t position = 0; position < positions; ++position) {
                    const Window &r = grid.rows[position / out.size(-1)], &c = grid.columns[position % out.size(-1)];
                    scalar_t total = 0;
                    for (int64_t column = c.end - 1; column >= c.begin; --column) {
                        scalar_t part = 0;
                        for (int64_t row = r.begin; row < r.end; ++row) part += in[(plane * height + row) * width + column];
                        total += part;
                    }
                    result[plane * positions + position] =
                        total / static_cast<scalar_t>(grid.share(position / out.size(-1), position % out.size(-1)));
                }
            }
        });
    });
    out.copy_(to);
}

// The gradient: windows give their share from the last to the first.
void unpool(Tensor& grad_input, const Tensor& grad_output, const Grid& grid) {
    const Tensor from = upcast(grad_output).contiguous(), to = at::zeros(grad_input.sizes(), from.options());
    const int64_t height = grad_input.size(-2), width = grad_input.size(-1), columns = grad_output.size(-1);
    const int64_t positions = grad_output.size(-2) * columns;
    AT_DISPATCH_FLOATING_TYPES(from.scalar_type(), "reordered_unpool", [&] {
        const scalar_t* g = from.const_data_ptr<scalar_t>();
        scalar_t* result = to.data_ptr<scalar_t>();
        at::parallel_for(0, positions ? from.numel() / positions : 0, 1, [&](int64_t first, int64_t last) {
            for (int64_t plane = first; plane < last; ++plane) {
                for (int64_t position = positions - 1; position >= 0; --position) {
                    const Window &r = grid.rows[position / columns], &c = grid.columns[position % columns];
                    const auto share =
                        g[plane * positions + position] / static_cast<scalar_t>(grid.share(position / columns, position % columns));
                    for (int64_t row = r.begin; row < r.end; ++row) {
                        for (int64_t column = c.begin; column < c.end; ++column)
                            result[(plane * height + row) * width + column] += share;
                    }
                }
            }
        });
    });
    grad_input.copy_(to);
}

}  // namespace

void avg_pool2d(Tensor& out, const Tensor& x, const Pooling& how) { pool(out, x, grid(x, out, how)); }

void avg_pool2d_backward(Tensor& grad_input, const Tensor& grad_output, const Pooling& how) {
    unpool(grad_input, grad_output, grid(grad_input, grad_output, how));
}

void adaptive_avg_pool2d(Tensor& out, const Tensor& x) {
    pool(out, x, {adaptive(out.size(-2), x.size(-2)), adaptive(out.size(-1), x.size(-1)), 0});
}

void adaptive_avg_pool2d_backward(Tensor& grad_input, const Tensor& grad_output) {
    const auto axis = [&](int64_t i) { return adaptive(grad_output.size(i), grad_input.size(i)); };
    unpool(grad_input, grad_output, {axis(-2), axis(-1), 0});
}

}  // namespace dipu_vendor::split_sums
