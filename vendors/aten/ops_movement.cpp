// Data movement: elements are copied to other positions, or a constant is written; none is changed.
#include "chip.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include KERNELS(cat)
#include <ATen/ops/copy_native.h>
#include KERNELS(fill)
#include KERNELS(flip)
#include <ATen/ops/meshgrid.h>
#include KERNELS(roll)
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/stack.h>
#include KERNELS(tril)
#include KERNELS(triu)
#include KERNELS(zero)

#include <algorithm>

#include "results.h"
#include "fast.h"
#include "kernel.h"

using namespace dipu_vendor;

// ---- filling and copying ----

diopiError_t diopiFill(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* value) {
    if (const auto number = flat_scalar(value)) {
        if (auto done = flat(ctx, __func__, [v = *number] { return v; }, input)) return *done;
    }
    return run(ctx, __func__, [](at::Tensor& x, at::Scalar& v) { kernels::fill_(x, v); }, input, value);
}

diopiError_t diopiZeroInp(diopiContextHandle_t ctx, diopiTensorHandle_t self) {
    if (auto done = flat(ctx, __func__, [] { return 0.0f; }, self)) return *done;
    return run(ctx, __func__, [](at::Tensor& x) { kernels::zero_(x); }, self);
}

diopiError_t diopiOnes(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiSize_t size) {
    return run(ctx, __func__, [](at::Tensor& o, Dims& sizes) { check_shape(o, sizes), kernels::fill_(o, 1); }, out, size);
}

diopiError_t diopiZeros(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiSize_t size) {
    return run(ctx, __func__, [](at::Tensor& o, Dims& sizes) { check_shape(o, sizes), kernels::zero_(o); }, out, size);
}

diopiError_t diopiCopyInp(diopiContextHandle_t ctx, diopiConstTensorHandle_t src, diopiTensorHandle_t dest) {
    return run(ctx, __func__, [](at::Tensor& from, at::Tensor& to) { at::native::copy_(to, from); }, src, dest);
}

diopiError_t diopiCastDtype(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x) { write(o, x); }, out, input);
}

// ---- joining and splitting ----

diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t* tensors, int64_t num_inputs,
                      int64_t dim) {
    return run(ctx, __func__, [](at::Tensor& o, std::vector<at::Tensor>& parts, int64_t d) {
        kernels::cat_out(o, at::ITensorListRef(given(parts)), d);
    }, out, list(tensors, num_inputs), dim);
}

diopiError_t diopiStack(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t* tensors, int64_t numTensors,
                        int64_t dim) {
    return run(ctx, __func__, [](at::Tensor& o, std::vector<at::Tensor>& parts, int64_t d) {
        at::stack_out(o, given(parts), d);
    }, out, list(tensors, numTensors), dim);
}

diopiError_t diopiSplitWithSizes(diopiContextHandle_t ctx, diopiTensorHandle_t* outs, int64_t num_outs, diopiConstTensorHandle_t input,
                                 const diopiSize_t splitSizes, int64_t dim) {
    return run(ctx, __func__, [](std::vector<at::Tensor>& parts, at::Tensor& x, Dims& sizes, int64_t d) {
        write_all(parts, at::split_with_sizes(x, sizes, d));
    }, list(outs, num_outs), input, splitSizes, dim);
}

diopiError_t diopiMeshGrid(diopiContextHandle_t ctx, diopiTensorHandle_t* outs, diopiConstTensorHandle_t* inputs, int64_t inputsNum) {
    return run(ctx, __func__, [](std::vector<at::Tensor>& grids, std::vector<at::Tensor>& axes) {
        write_all(grids, at::meshgrid(given(axes), "ij"));
    }, list(outs, inputsNum), list(inputs, inputsNum));
}

// ---- the results of views ----

diopiError_t diopiTranspose(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim0,
                            int64_t dim1) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t a, int64_t b) { write(o, x.transpose(a, b)); }, out, input, dim0,
               dim1);
}

diopiError_t diopiPermute(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dims) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, Dims& order) { write(o, x.permute(order)); }, out, input, dims);
}

diopiError_t diopiExpand(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x) { write(o, x.expand(o.sizes())); }, out, input);
}

diopiError_t diopiSelect(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim, int64_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, int64_t i) { write(o, x.select(d, i)); }, out, input, dim,
               index);
}

diopiError_t diopiSelectBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                 diopiSize_t input_sizes, int64_t dim, int64_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, Dims& sizes, int64_t d, int64_t i) {
        check_shape(o, sizes);
        auto part = o.select(d, i);
        check_shape(part, g.sizes());
        o.zero_();
        part.copy_(g);
    }, grad_input, grad_output, input_sizes, dim, index);
}

diopiError_t diopiSelectScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                diopiConstTensorHandle_t src, int64_t dim, int64_t index) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& source, int64_t d, int64_t i) {
        auto part = o.select(d, i);
        check_shape(part, source.sizes());
        write(o, x);
        part.copy_(source);
    }, out, input, src, dim, index);
}

diopiError_t diopiSlice(diopiContextHandle_t ctx, diopiTensorHandle_t null_out, diopiConstTensorHandle_t input, int64_t dim, int64_t start,
                        int64_t end, int64_t step) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d, int64_t from, int64_t to, int64_t by) {
        write(o, x.slice(d, from, to, by));
    }, null_out, input, dim, start, end, step);
}

diopiError_t diopiSliceBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                diopiSize_t input_sizes, int64_t dim, int64_t start, int64_t end, int64_t step) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, Dims& sizes, int64_t d, int64_t from, int64_t to, int64_t by) {
        check_shape(o, sizes);
        auto part = o.slice(d, from, to, by);
        check_shape(part, g.sizes());
        o.zero_();
        part.copy_(g);
    }, grad_input, grad_output, input_sizes, dim, start, end, step);
}

diopiError_t diopiSliceScatter(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                               diopiConstTensorHandle_t src, int64_t dim, int64_t start, int64_t end, int64_t step) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& source, int64_t d, int64_t from, int64_t to, int64_t by) {
        auto part = o.slice(d, from, to, by);
        check_shape(part, source.sizes());
        write(o, x);
        part.copy_(source);
    }, out, input, src, dim, start, end, step);
}

// ---- other positions ----

diopiError_t diopiFlip(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dims) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, Dims& d) { write(o, kernels::flip(x, d)); }, out, input, dims);
}

diopiError_t diopiRoll(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t shifts,
                       diopiSize_t dims) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, Dims& by, Dims& d) { write(o, kernels::roll(x, by, d)); }, out, input,
               shifts, dims);
}

diopiError_t diopiRepeat(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t repeats_size) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, Dims& repeats) {
        const auto extra = static_cast<int64_t>(repeats.size()) - x.dim();
        TORCH_CHECK(extra >= 0, "an input of ", x.dim(), " dimensions needs as many repeats, got ", repeats.size());
        Dims sizes(repeats.size(), 1);
        std::copy(x.sizes().begin(), x.sizes().end(), sizes.begin() + extra);
        for (size_t i = 0; i < sizes.size(); ++i) {
            TORCH_CHECK(repeats[i] >= 0, "repeats must not be negative, got ", at::IntArrayRef(repeats));
            TORCH_CHECK(!__builtin_mul_overflow(sizes[i], repeats[i], &sizes[i]), "the result is too large");
        }
        check_shape(o, sizes);  // before anything of that size is made
        o.copy_(x.repeat(repeats));
    }, out, input, repeats_size);
}

namespace {

// Beyond its corners a matrix has no diagonals; clamped, so that adding to the number cannot overflow.
int64_t diagonal_within(const at::Tensor& x, int64_t diagonal) {
    if (x.dim() < 2) return 0;
    return std::clamp(diagonal, -x.size(-2) - 1, x.size(-1) + 1);
}

}  // namespace

diopiError_t diopiTril(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t diagonal) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d) { kernels::tril_out(o, x, diagonal_within(x, d)); }, out, input,
               diagonal);
}

diopiError_t diopiTriu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t diagonal) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, int64_t d) { kernels::triu_out(o, x, diagonal_within(x, d)); }, out, input,
               diagonal);
}

diopiError_t diopiTriuInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, int64_t diagonal) {
    return run(ctx, __func__, [](at::Tensor& x, int64_t d) { kernels::triu_(x, diagonal_within(x, d)); }, input, diagonal);
}

// ---- memory formats ----

namespace {

// A copy whose elements lie in memory as the format says.
at::Tensor in_format(const at::Tensor& x, diopiMemoryFormat_t format) {
    switch (format) {
        case diopiMemoryFormatContiguous: return x.clone(at::MemoryFormat::Contiguous);
        case diopiMemoryFormatChannelsLast: return x.clone(at::MemoryFormat::ChannelsLast);
        case diopiMemoryFormatChannelsLast3d: return x.clone(at::MemoryFormat::ChannelsLast3d);
        case diopiMemoryFormatPreserve: return x.clone(at::MemoryFormat::Preserve);
        case diopiMemoryFormatChannelsLast1d:
            TORCH_CHECK(x.dim() == 3, "channels last of one dimension needs 3 dimensions (N, C, L), got ", x.dim());
            return x.transpose(1, 2).clone(at::MemoryFormat::Contiguous).transpose(1, 2);
    }
    TORCH_CHECK(false, "memory format ", static_cast<int>(format), " is not known");
}

// As require_like, and with the strides of `result`.
diopiTensorHandle_t require_strided(diopiContextHandle_t ctx, const at::Tensor& result) {
    diopiTensorHandle_t made = nullptr;
    const diopiSize_t size{result.sizes().data(), result.dim()}, stride{result.strides().data(), result.dim()};
    const auto status = diopiRequireTensor(ctx, &made, &size, &stride, diopi_dtype(result.scalar_type()), diopi_device);
    TORCH_CHECK(status == diopiSuccess && made, "no tensor could be made for the result (error ", static_cast<int>(status), ")");
    view(made).copy_(result);
    return made;
}

}  // namespace

diopiError_t diopiContiguous(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input,
                             diopiMemoryFormat_t memoryFormat) {
    return run_now(ctx, __func__, [&] {
        check_pointer(out);
        *out = require_strided(ctx, in_format(view(input), memoryFormat));
    });
}

// The simulated chip has no format of its own: its number is -1, and every other one is refused.
diopiError_t diopiNativeMemoryFormatCast(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiTensorHandle_t in, int64_t format) {
    return run_now(ctx, __func__, [&] {
        check_pointer(out);
        TORCH_CHECK(format == -1, "there is no memory format ", format, " here; -1 is the only one");
        *out = require_strided(ctx, in_format(view(in), diopiMemoryFormatPreserve));
    });
}

diopiError_t diopiGetNativeMemoryFormat(diopiContextHandle_t ctx, diopiConstTensorHandle_t input, int64_t* format) {
    return guarded(__func__, [&] {
        check_pointer(format);
        view(input);
        *format = -1;
    });
}

// Nothing is kept about a tensor.
diopiError_t diopiTensorDestructionHook(diopiContextHandle_t ctx, void* ptr) { return diopiSuccess; }
