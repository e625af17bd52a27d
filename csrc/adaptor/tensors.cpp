#include "tensors.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace adaptor {
namespace {

constexpr std::array<const char*, kDtypes> kNames = {
    "int8",    "uint8",   "int16", "uint16",   "int32",    "uint32",    "int64",     "uint64",    "float16",
    "float32", "float64", "bool",  "bfloat16", "tfloat32", "complex32", "complex64", "complex128"};
constexpr std::array<int64_t, kDtypes> kSizes = {1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 1, 2, 4, 4, 8, 16};

// The dimensions from the slowest to the fastest in memory.
Numbers order_of(const Layout& layout, size_t dims) {
    Numbers order(dims);
    std::iota(order.begin(), order.end(), 0);
    if (layout.channels_last) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    return order;
}

Numbers strides_in(const Numbers& shape, const Numbers& order) {
    Numbers stride(shape.size());
    int64_t step = 1;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
        stride[*it] = step;
        step *= std::max<int64_t>(shape[*it], 1);
    }
    return stride;
}

// The stride of a dimension of one element does not matter.
bool same_places(const Tensor& tensor, const Numbers& stride) {
    if (tensor.numel == 0) return true;
    for (size_t i = 0; i < tensor.shape.size(); ++i)
        if (tensor.shape[i] > 1 && tensor.stride[i] != stride[i]) return false;
    return true;
}

// Every place of the memory it spans is used once.
bool is_dense(const Tensor& tensor) {
    Numbers order(tensor.shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.stride[a] > tensor.stride[b]; });
    return same_places(tensor, strides_in(tensor.shape, order));
}

}  // namespace

Rule::Rule() { std::fill(std::begin(dtype), std::end(dtype), static_cast<int8_t>(-1)); }

bool Rule::demands() const {
    return contiguous || !layouts.empty() || std::any_of(std::begin(dtype), std::end(dtype), [](int8_t to) { return to >= 0; });
}

int64_t element_size(int dtype) { return dtype >= 0 && dtype < kDtypes ? kSizes[dtype] : 0; }

const char* dtype_name(int dtype) { return dtype >= 0 && dtype < kDtypes ? kNames[dtype] : "no dtype"; }

Layout layout_named(const std::string& name) {
    for (const char* first : {"NCHW", "NCDHW", "NCL"})
        if (name == first) return {name, static_cast<int64_t>(name.size()), false, false};
    for (const char* last : {"NHWC", "NDHWC", "NLC"})
        if (name == last) return {name, static_cast<int64_t>(name.size()), true, false};
    return {name, 0, false, name == "ND"};
}

bool describe(diopiConstTensorHandle_t handle, Tensor& tensor, bool& sparse) {
    diopiSize_t shape{}, stride{};
    diopiDtype_t dtype{};
    sparse = false;
    if (diopiIsTensorSparse(handle, &sparse) == diopiSuccess && sparse) return false;
    if (diopiGetTensorShape(handle, &shape) || diopiGetTensorStride(handle, &stride) || diopiGetTensorDtype(handle, &dtype) ||
        diopiGetTensorNumel(handle, &tensor.numel) || diopiGetTensorDataConst(handle, &tensor.data))
        return false;
    if (shape.len < 0 || shape.len != stride.len || element_size(dtype) == 0) return false;
    if (diopiGetTensorDevice(handle, &tensor.device) != diopiSuccess) tensor.device = diopi_device;
    tensor.handle = handle;
    tensor.shape.assign(shape.data, shape.data + shape.len);
    tensor.stride.assign(stride.data, stride.data + stride.len);
    tensor.dtype = dtype;
    return true;
}

Numbers contiguous_strides(const Numbers& shape) { return strides_in(shape, order_of({}, shape.size())); }

bool is_contiguous(const Tensor& tensor) { return same_places(tensor, contiguous_strides(tensor.shape)); }

int64_t extent(const Tensor& tensor) {
    if (tensor.numel == 0) return 0;
    int64_t last = 0;
    for (size_t i = 0; i < tensor.shape.size(); ++i) last += (tensor.shape[i] - 1) * tensor.stride[i];
    return last + 1;
}

Numbers wanted_strides(const Rule& rule, const Tensor& tensor, bool new_memory) {
    const Layout* target = nullptr;
    for (const Layout& layout : rule.layouts) {
        if (!layout.any && layout.rank != static_cast<int64_t>(tensor.shape.size())) continue;
        if (!target) target = &layout;
        if (layout.any) break;
        const Numbers here = strides_in(tensor.shape, order_of(layout, tensor.shape.size()));
        if (same_places(tensor, here)) return new_memory ? here : tensor.stride;
    }
    if (target && !target->any) return strides_in(tensor.shape, order_of(*target, tensor.shape.size()));
    if (rule.contiguous && !is_contiguous(tensor)) return contiguous_strides(tensor.shape);
    // New memory keeps the order of the dimensions, but no gaps and no element twice.
    return new_memory && !is_dense(tensor) ? contiguous_strides(tensor.shape) : tensor.stride;
}

}  // namespace adaptor
