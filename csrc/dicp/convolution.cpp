#include "convolution.h"

#include <ATen/Parallel.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "../parallel/parallel_for.h"

namespace dicp {
namespace {

constexpr int64_t kSums = 576;      // rows of a panel at a time: they stay in the second cache
constexpr int64_t kShare = 1 << 18;  // products of two numbers that are worth a thread

/// How sums are divided: taps, each of some numbers that are neighbours in x.
struct Shape {
    int64_t channels, outputs, rows, columns, kernel_rows, kernel_columns;
    bool whole_rows;  // a tap is a row of the kernel; else one of its elements
    bool last;        // channels are the innermost of the weight as it is packed
    int64_t panels, width;

    int64_t sums() const { return channels * kernel_rows * kernel_columns; }
    int64_t taps() const { return whole_rows ? kernel_rows : kernel_rows * kernel_columns; }
    int64_t depth() const { return sums() / taps(); }
    int64_t panel_tap() const { return last ? depth() : 1; }
    int64_t panel_step() const { return last ? 1 : kernel_rows * kernel_columns; }
};

bool channels_last(const int64_t* sizes, const int64_t* strides) {
    int64_t expected = 1;
    for (const int dim : {1, 3, 2, 0}) {
        if (sizes[dim] != 1 && strides[dim] != expected) return false;
        expected *= sizes[dim];
    }
    return true;
}

bool contiguous(const int64_t* sizes, const int64_t* strides) {
    int64_t expected = 1;
    for (const int dim : {3, 2, 1, 0}) {
        if (sizes[dim] != 1 && strides[dim] != expected) return false;
        expected *= sizes[dim];
    }
    return true;
}

Shape shape_of(const Convolution& c, const ConvolutionSettings& s) {
    const auto* w = c.weight_sizes;
    Shape shape{w[1], w[0], c.out_sizes[2], c.out_sizes[3], w[2], w[3], false, false, 0, 0};
    shape.whole_rows = s.dilation[1] == 1 && shape.channels < 8;
    shape.last = shape.whole_rows || !contiguous(c.weight_sizes, c.weight_strides);
    const auto& use = kernels();
    const int64_t most = divided(shape.outputs, use.panel);
    shape.width = padded(divided(shape.outputs, most), use.lanes);
    shape.panels = divided(shape.outputs, shape.width);
    return shape;
}

/// The weight with channels as the innermost: numbers of one output are one behind the other.
const float* with_channels_last(const Convolution& c, const Shape& shape) {
    if (channels_last(c.weight_sizes, c.weight_strides)) return c.weight;
    float* to = scratch<1>(shape.outputs * shape.sums());
    const float* from = to;
    for (const auto o : c10::irange(shape.outputs))
        for (const auto i : c10::irange(shape.kernel_rows))
            for (const auto j : c10::irange(shape.kernel_columns))
                for (const auto k : c10::irange(shape.channels))
                    *to++ = c.weight[o * c.weight_strides[0] + k * c.weight_strides[1] + i * c.weight_strides[2] + j * c.weight_strides[3]];
    return from;
}

/// x with zeros around it.
const float* with_border(const Convolution& c, const ConvolutionSettings& s, int64_t height, int64_t width) {
    if (s.padding[0] == 0 && s.padding[1] == 0) return c.x;
    const int64_t channels = c.x_sizes[1], row = width * channels, side = s.padding[1] * channels, inner = c.x_sizes[3] * channels;
    float* to = scratch<2>(c.x_sizes[0] * height * row);
    ditorch::parallel_for(0, c.x_sizes[0] * height, divided(kShare, row), [&](int64_t begin, int64_t end) {
        for (const auto number : c10::irange(begin, end)) {
            const int64_t y = number % height - s.padding[0];
            float* at = to + number * row;
            if (y < 0 || y >= c.x_sizes[2]) {
                std::memset(at, 0, sizeof(float) * row);
                continue;
            }
            std::memset(at, 0, sizeof(float) * side);
            std::memcpy(at + side, c.x + (number / height * c.x_sizes[2] + y) * inner, sizeof(float) * inner);
            std::memset(at + side + inner, 0, sizeof(float) * side);
        }
    });
    return to;
}

}  // namespace

std::optional<ConvolutionSettings> convolution_settings(const std::vector<c10::IValue>& arguments) {
    if (kernels().lanes <= 4 || arguments.size() != 9) return std::nullopt;
    ConvolutionSettings found{};
    int64_t* const targets[] = {found.stride, found.padding, found.dilation};
    for (const int i : {3, 4, 5}) {
        if (!arguments[i].isIntList()) return std::nullopt;
        const auto numbers = arguments[i].toIntVector();
        if (numbers.size() != 2) return std::nullopt;
        std::copy(numbers.begin(), numbers.end(), targets[i - 3]);
    }
    const bool plain = arguments[6].isBool() && !arguments[6].toBool() && arguments[8].isInt() && arguments[8].toInt() == 1;
    return plain && found.padding[0] >= 0 && found.padding[1] >= 0 ? std::optional(found) : std::nullopt;
}

bool serves(const Convolution& c) {
    for (const auto* sizes : {c.x_sizes, c.weight_sizes, c.out_sizes})
        if (sizes[0] * sizes[1] * sizes[2] * sizes[3] == 0) return false;
    const bool dense = contiguous(c.weight_sizes, c.weight_strides) || channels_last(c.weight_sizes, c.weight_strides);
    return dense && channels_last(c.x_sizes, c.x_strides) && channels_last(c.out_sizes, c.out_strides);
}

std::shared_ptr<const Panels> packed_weight(const Convolution& c, const ConvolutionSettings& s) {
    const auto shape = shape_of(c, s);
    const int64_t sums = shape.sums();
    const float* weight = shape.last ? with_channels_last(c, shape) : c.weight;
    auto made = std::make_shared<Panels>(shape.panels * shape.width * sums);
    for (const auto panel : c10::irange(shape.panels)) {
        const int64_t first = panel * shape.width, width = std::min(shape.width, shape.outputs - first);
        kernels().pack(weight + first * sums, 1, sums, sums, width, made->begin() + first * sums);
    }
    return made;
}

void convolve(const Convolution& c, const ConvolutionSettings& s, const Panels& weight) {
    const auto& use = kernels();
    const auto shape = shape_of(c, s);
    const int64_t channels = shape.channels, outputs = shape.outputs;
    const int64_t height = c.x_sizes[2] + 2 * s.padding[0], width = c.x_sizes[3] + 2 * s.padding[1];
    const float* x = with_border(c, s, height, width);
    std::vector<int64_t> taps(shape.taps());
    for (const auto tap : c10::irange(shape.taps())) {
        const int64_t i = shape.whole_rows ? tap : tap / shape.kernel_columns, j = shape.whole_rows ? 0 : tap % shape.kernel_columns;
        taps[tap] = (i * s.dilation[0] * width + j * s.dilation[1]) * channels;
    }
    int64_t rows = shape.rows, columns = shape.columns;
    if (s.stride[0] * width == columns * s.stride[1]) columns *= rows, rows = 1;  // the rows of x that are read lie one behind the other
    const int64_t part = std::max<int64_t>(kSums / shape.taps(), 8), tasks = c.x_sizes[0] * rows;
    ditorch::parallel_for(0, tasks * shape.panels, divided(kShare, columns * shape.width * shape.sums()), [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int64_t panel = begin / tasks, last = std::min(end, (panel + 1) * tasks), first = panel * shape.width;
            const int64_t own = std::min(shape.width, outputs - first), wide = padded(own, use.lanes);
            for (int64_t at = 0; at < shape.depth(); at += part)
                for (int64_t task = begin - panel * tasks; task < last - panel * tasks; ++task) {
                    const int64_t image = task / rows, row = task % rows;
                    use.panel_product({x + (image * height + row * s.stride[0]) * width * channels + at, s.stride[1] * channels, 1,
                                       weight.begin() + first * shape.sums() + at * shape.panel_step() * wide, std::min(part, shape.depth() - at), own,
                                       c.out + task * columns * outputs + first, outputs, c.bias ? c.bias + first : nullptr, at > 0, shape.taps(), taps.data(),
                                       shape.panel_tap(), shape.panel_step()},
                                      columns);
                }
            begin = last;
        }
    });
}

}  // namespace dicp
