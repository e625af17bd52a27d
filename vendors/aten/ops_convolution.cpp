// Convolutions.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>

#include <array>

#include "kernel.h"
#include "reordered.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

namespace {

struct Convolution {
    Dims stride, padding, dilation, output_padding;
    int64_t groups;
    bool transposed;

    int64_t spatial() const { return static_cast<int64_t>(stride.size()); }
    int64_t channels(const Tensor& weight) const { return transposed ? weight.size(1) * groups : weight.size(0); }

    // The shape of the result; what ATen would not notice is an error here.
    Dims result_of(const Tensor& x, const Tensor& weight) const {
        TORCH_CHECK(x.dim() == spatial() + 2 && weight.dim() == x.dim(), "the input and the weight need ", spatial() + 2,
                    " dimensions, but have ", x.dim(), " and ", weight.dim());
        const bool fits = groups > 0 && x.size(1) % groups == 0 && weight.size(0) % groups == 0;
        TORCH_CHECK(fits, "channels cannot be cut into ", groups, " groups");
        const int64_t read = transposed ? weight.size(0) : weight.size(1) * groups;
        TORCH_CHECK(x.size(1) == read, "the weight reads ", read, " channels, but the input has ", x.size(1));
        Dims sizes{x.size(0), channels(weight)};
        for (int64_t i = 0; i < spatial(); ++i) sizes.push_back(length(x.size(i + 2), weight.size(i + 2), i));
        return sizes;
    }

    Tensor forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) const {
        return at::native::convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
    }
    Gradients backward(const Tensor& g, const Tensor& x, const Tensor& weight, std::array<bool, 3> wanted) const {
        const int64_t bias_shape[] = {channels(weight)};
        return at::native::convolution_backward(g, x, weight, bias_shape, stride, padding, dilation, transposed, output_padding, groups,
                                                wanted);
    }

   private:
    static constexpr int64_t kMost = int64_t{1} << 31;

    int64_t length(int64_t pixels, int64_t kernel, int64_t i) const {
        for (int64_t number : {stride[i], dilation[i], kernel})
            TORCH_CHECK(number > 0 && number < kMost, "stride, dilation and size of the kernel must be positive");
        for (int64_t number : {padding[i], output_padding[i]})
            TORCH_CHECK(number >= 0 && number < kMost, "padding must not be negative");
        TORCH_CHECK(pixels < kMost, "the input is too large");
        const int64_t window = dilation[i] * (kernel - 1) + 1;
        if (transposed) return (pixels - 1) * stride[i] - 2 * padding[i] + window + output_padding[i];
        const int64_t room = pixels + 2 * padding[i] - window;
        TORCH_CHECK(room >= 0, "the kernel is larger than the padded input");
        return room / stride[i] + 1;
    }
};

Convolution described(diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, const diopiSize_t* output_padding, int64_t groups,
                      size_t spatial) {
    const bool transposed = output_padding;
    Convolution how{dims(stride), dims(padding), dims(dilation), transposed ? dims(*output_padding) : Dims(spatial, 0), groups, transposed};
    for (const Dims* list : {&how.stride, &how.padding, &how.dilation, &how.output_padding})
        TORCH_CHECK(list->size() == spatial, "stride, padding and dilation need ", spatial, " numbers, but one has ", list->size());
    return how;
}

// A convolution is linear in the input and in the weight, so that of complex numbers is four of real ones.
Tensor complex_forward(const Convolution& how, const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
    const Tensor a = at::real(x), b = at::imag(x), c = at::real(weight), d = at::imag(weight);
    const Tensor result = at::complex(how.forward(a, c, std::nullopt) - how.forward(b, d, std::nullopt),
                                      how.forward(a, d, std::nullopt) + how.forward(b, c, std::nullopt));
    if (!bias) return result;
    Dims channels(result.dim(), 1);
    channels[1] = result.size(1);
    return result + bias->reshape(channels);
}

// Gradients are those of the conjugate: of what a real loss would change most by.
Gradients complex_backward(const Convolution& how, const Tensor& grad, const Tensor& input, const Tensor& weight,
                           std::array<bool, 3> wanted) {
    const Tensor gr = at::real(grad), gi = at::imag(grad), xr = at::real(input), xi = at::imag(input).neg();
    const Tensor wr = at::real(weight), wi = at::imag(weight).neg();
    const std::array<bool, 3> both{wanted[0], wanted[1], false};
    const auto rr = how.backward(gr, xr, wr, both), ii = how.backward(gi, xi, wi, both);
    const auto ri = how.backward(gr, xi, wi, both), ir = how.backward(gi, xr, wr, both);
    const auto joined = [](const Tensor& rr, const Tensor& ii, const Tensor& ri, const Tensor& ir) {
        return rr.defined() ? at::complex(rr - ii, ri + ir) : Tensor();
    };
    Dims others{0};
    for (int64_t i = 2; i < grad.dim(); ++i) others.push_back(i);
    return {joined(std::get<0>(rr), std::get<0>(ii), std::get<0>(ri), std::get<0>(ir)),
            joined(std::get<1>(rr), std::get<1>(ii), std::get<1>(ri), std::get<1>(ir)), wanted[2] ? grad.sum(others) : Tensor()};
}

split_sums::Convolution plain(const Convolution& how) { return {how.stride, how.padding, how.dilation, how.groups}; }

// The choice of algorithm (oneDNN, im2col, ...) is at::convolution's, as on the CPU; it has no form that writes into a given
// tensor.
void convolve(Tensor& o, const Tensor& x, const Tensor& w, const OptionalTensor& b, const Convolution& how) {
    const Dims sizes = how.result_of(x, w);
    check_shape(o, sizes, "the output");
    check_count(b, sizes[1], "the bias");
    if (x.is_complex()) return write(o, complex_forward(how, x, w, b));
    if (reordered() && how.spatial() == 2 && !how.transposed) return split_sums::convolution2d(o, x, w, b, plain(how));
    write(o, how.forward(x, w, b));
}

void convolve_backward(OptionalTensor& gx, OptionalTensor& gw, OptionalTensor& gb, const Tensor& g, const Tensor& x, const Tensor& w,
                       const Convolution& how) {
    const Dims sizes = how.result_of(x, w);
    check_shape(g, sizes, "the gradient");
    const std::array<bool, 3> wanted{gx.has_value(), gw.has_value(), gb.has_value()};
    if (reordered() && how.spatial() == 2 && !how.transposed && !x.is_complex()) {
        if (gx) check_same_shape(*gx, x, "the gradient of the input and the input");
        if (gw) check_same_shape(*gw, w, "the gradient of the weight and the weight");
        check_count(gb, sizes[1], "the gradient of the bias");
        Tensor dx = gx.value_or(Tensor()), dw = gw.value_or(Tensor()), db = gb.value_or(Tensor());
        return split_sums::convolution2d_backward(dx, dw, db, g, x, w, plain(how));
    }
    const auto [dx, dw, db] = x.is_complex() ? complex_backward(how, g, x, w, wanted) : how.backward(g, x, w, wanted);
    write(gx, dx), write(gw, dw), write(gb, db);
}

template <size_t kSpatial>
diopiError_t forward(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                     diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiSize_t stride, diopiSize_t padding,
                     diopiSize_t dilation, const diopiSize_t* output_padding, int64_t groups) {
    return launch(ctx, name, [&] {
        Convolution how = described(stride, padding, dilation, output_padding, groups, kSpatial);
        return [o = view(out), x = view(input), w = view(weight), b = optional_view(bias), how = std::move(how)]() mutable {
            convolve(o, x, w, b, how);
        };
    });
}

template <size_t kSpatial>
diopiError_t backward(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                      diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                      diopiConstTensorHandle_t weight, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,
                      const diopiSize_t* output_padding, int64_t groups) {
    return launch(ctx, name, [&] {
        Convolution how = described(stride, padding, dilation, output_padding, groups, kSpatial);
        return [gx = optional_view(grad_input), gw = optional_view(grad_weight), gb = optional_view(grad_bias), g = view(grad_output),
                x = view(input), w = view(weight), how = std::move(how)]() mutable { convolve_backward(gx, gw, gb, g, x, w, how); };
    });
}

}  // namespace

#define CONVOLUTION(N)                                                                                                                    \
    diopiError_t diopiConvolution##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                \
                                        diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiSize_t stride,               \
                                        diopiSize_t padding, diopiSize_t dilation, int64_t groups) {                                      \
        return forward<N>(ctx, __func__, out, input, weight, bias, stride, padding, dilation, nullptr, groups);                           \
    }                                                                                                                                     \
    diopiError_t diopiConvolution##N##dBackward(                                                                                          \
        diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,         \
        diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiSize_t* bias_sizes,   \
        diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, int64_t groups) {                                                  \
        return backward<N>(ctx, __func__, grad_input, grad_weight, grad_bias, grad_output, input, weight, stride, padding, dilation,      \
                           nullptr, groups);                                                                                              \
    }                                                                                                                                     \
    diopiError_t diopiConvTranspose##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,              \
                                          diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiSize_t stride,             \
                                          diopiSize_t padding, diopiSize_t output_padding, int64_t groups, diopiSize_t dilation) {        \
        return forward<N>(ctx, __func__, out, input, weight, bias, stride, padding, dilation, &output_padding, groups);                   \
    }                                                                                                                                     \
    diopiError_t diopiConvTranspose##N##dBackward(                                                                                        \
        diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias,         \
        diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiSize_t* bias_sizes,   \
        diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, diopiSize_t output_padding, int64_t groups) {                      \
        return backward<N>(ctx, __func__, grad_input, grad_weight, grad_bias, grad_output, input, weight, stride, padding, dilation,      \
                           &output_padding, groups);                                                                                      \
    }

CONVOLUTION(2)
CONVOLUTION(3)
