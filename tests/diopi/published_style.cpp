// Operators as third parties write them against the published interface, over PyTorch's kernels for the accelerator: the five short
// names of memory formats, numbers read as integers up to uint64 and as doubles otherwise, exceptions that nobody catches, the first
// forms of losses only.
#include <ATen/CUDAFunctions_inl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <diopi/functions.h>

#include <stdexcept>

#include "impl_functions.hpp"

namespace impl {
namespace cuda {
namespace {

at::ScalarType scalar_type(diopiDtype_t dtype) {
    switch (dtype) {
        case diopi_dtype_bool: return at::kBool;
        case diopi_dtype_int32: return at::kInt;
        case diopi_dtype_int64: return at::kLong;
        case diopi_dtype_float32: return at::kFloat;
        case diopi_dtype_float64: return at::kDouble;
        default: TORCH_CHECK_NOT_IMPLEMENTED(false, "dtype ", static_cast<int>(dtype));
    }
}

at::Tensor tensor(diopiConstTensorHandle_t handle) {
    if (!handle) return {};
    diopiSize_t shape, stride;
    diopiDtype_t dtype;
    diopiDevice_t where;
    diopiDeviceIndex_t index = 0;
    const void* data = nullptr;
    diopiGetTensorShape(handle, &shape);
    diopiGetTensorStride(handle, &stride);
    diopiGetTensorDtype(handle, &dtype);
    diopiGetTensorDevice(handle, &where);
    diopiGetTensorDeviceIndex(handle, &index);
    diopiGetTensorDataConst(handle, &data);
    at::globalContext().lazyInitCUDA();
    const at::Device device = where == diopi_host ? at::Device(at::kCPU) : at::Device(at::DeviceType::CUDA, index);
    const at::IntArrayRef sizes(shape.data, shape.len), strides(stride.data, stride.len);
    if (!data) return at::detail::empty_cuda(sizes, scalar_type(dtype), device, std::nullopt);
    return at::from_blob(const_cast<void*>(data), sizes, strides, at::TensorOptions(device).dtype(scalar_type(dtype)));
}

at::Scalar number(const diopiScalar_t* scalar) {
    if (scalar->stype <= 7) return scalar->ival;
    return scalar->fval;
}

void choose_stream(diopiContextHandle_t ctx) {
    diopiStreamHandle_t stream = nullptr;
    diopiGetStream(ctx, &stream);
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0));
}

}  // namespace

diopiError_t diopiAdd(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha) {
    choose_stream(ctx);
    at::Tensor result = tensor(out);
    at::cuda::add_out(result, tensor(input), tensor(other), number(alpha));
    return diopiSuccess;
}

diopiError_t diopiAddScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const diopiScalar_t* other, const diopiScalar_t* alpha) {
    at::Tensor result = tensor(out);
    at::add_out(result, tensor(input), at::scalar_tensor(number(other), at::kDouble).to(result.scalar_type()), number(alpha));
    return diopiSuccess;
}

diopiError_t diopiMulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const diopiScalar_t* other) {
    tensor(out).copy_(tensor(input).mul(number(other)));
    return diopiSuccess;
}

diopiError_t diopiEqScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const diopiScalar_t* other) {
    at::Tensor result = tensor(out);
    at::cuda::eq_out(result, tensor(input), number(other));
    return diopiSuccess;
}

diopiError_t diopiFill(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* value) {
    tensor(input).fill_(number(value));
    return diopiSuccess;
}

diopiError_t diopiContiguous(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input, diopiMemoryFormat_t format) {
    const at::Tensor from = tensor(input);
    at::Tensor made;
    switch (format) {
        case diopiMemoryFormat_t::Contiguous: made = from.contiguous(); break;
        case diopiMemoryFormat_t::ChannelsLast: made = from.contiguous(at::MemoryFormat::ChannelsLast); break;
        case diopiMemoryFormat_t::ChannelsLast3d: made = from.contiguous(at::MemoryFormat::ChannelsLast3d); break;
        case diopiMemoryFormat_t::Preserve: made = from; break;
        case diopiMemoryFormat_t::ChannelsLast1d: return diopiNoImplement;
    }
    diopiDtype_t dtype;
    diopiGetTensorDtype(input, &dtype);
    const diopiSize_t size{made.sizes().data(), made.dim()}, stride{made.strides().data(), made.dim()};
    const diopiError_t status = diopiRequireTensor(ctx, out, &size, &stride, dtype, diopi_device);
    if (status == diopiSuccess) tensor(*out).copy_(made);
    return status;
}

diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double from, double to, diopiGeneratorHandle_t generator) {
    uint64_t seed = 0, offset = 0;
    diopiGeneratorGetSeedAndOffset(generator, &seed, &offset);
    at::Generator engine = at::cuda::detail::createCUDAGenerator();
    engine.set_current_seed(seed);
    engine.set_offset(offset);
    tensor(inout).uniform_(from, to, engine);
    return diopiGeneratorSetSeedAndOffset(generator, engine.current_seed(), engine.get_offset());
}

// An index that is out of range is an exception of torch.
diopiError_t diopiIndexSelect(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim, diopiConstTensorHandle_t index) {
    at::Tensor result = tensor(out);
    at::index_select_out(result, tensor(input), dim, tensor(index));
    return diopiSuccess;
}

diopiError_t diopiLog(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    const at::Tensor from = tensor(input);
    if (from.lt(0).any().item<bool>()) throw std::domain_error("the logarithm of a negative number");
    at::Tensor result = tensor(out);
    at::log_out(result, from);
    return diopiSuccess;
}

diopiError_t diopiSqrt(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) { throw 7; }

// It throws because the memory that it asked for was refused.
diopiError_t diopiExp(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    diopiTensorHandle_t buffer = nullptr;
    if (diopiRequireBuffer(ctx, &buffer, int64_t(1) << 44, diopi_device) != diopiSuccess) throw std::runtime_error("no buffer");
    return diopiSuccess;
}

diopiError_t diopiNLLLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight, diopiReduction_t reduction, int64_t ignore_index) {
    const at::Tensor factors = tensor(weight);
    tensor(out).copy_(at::nll_loss_nd(tensor(input), tensor(target), factors.defined() ? std::optional<at::Tensor>(factors) : std::nullopt, reduction, ignore_index));
    return diopiSuccess;
}

// The loss of each target, divided by what counts; written out, as the kernel of PyTorch asks for the total weight.
diopiError_t diopiNLLLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight, diopiReduction_t reduction, int64_t ignore_index) {
    const at::Tensor classes = tensor(target), counts = classes.ne(ignore_index), chosen = classes.masked_fill(~counts, 0);
    at::Tensor factors = tensor(weight), result = tensor(grad_input);
    factors = (factors.defined() ? factors.index_select(0, chosen.flatten()).view_as(chosen) : at::ones_like(chosen, result.options())) * counts;
    at::Tensor each = -tensor(grad_output) * factors;
    if (reduction == ReductionMean) each = each / factors.sum();
    result.zero_().scatter_(1, chosen.unsqueeze(1), each.unsqueeze(1));
    return diopiSuccess;
}

// The gradient of the bias is computed only if the bias's shape is given.
diopiError_t diopiConvolution2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight, diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiSize_t* bias_sizes, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, int64_t groups) {
    const auto list = [](const diopiSize_t& size) { return at::IntArrayRef(size.data, size.len); };
    const std::vector<int64_t> none(stride.len, 0);
    const auto sizes = bias_sizes ? at::OptionalIntArrayRef(list(*bias_sizes)) : at::OptionalIntArrayRef();
    const auto made = at::cuda::convolution_backward(tensor(grad_output), tensor(input), tensor(weight), sizes, list(stride), list(padding), list(dilation), false, none, groups,
                                                     {grad_input != nullptr, grad_weight != nullptr, grad_bias != nullptr && bias_sizes != nullptr});
    if (grad_input) tensor(grad_input).copy_(std::get<0>(made));
    if (grad_weight) tensor(grad_weight).copy_(std::get<1>(made));
    if (grad_bias && bias_sizes) tensor(grad_bias).copy_(std::get<2>(made));
    return diopiSuccess;
}

}  // namespace cuda
}  // namespace impl
