// What the functions that Python calls share: errors that name an argument, tensors as kernels take them, and who serves calls that
// no kernel takes: the operator's reference.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <stdexcept>
#include <string>

#include "kernels/cpu_capability.h"

namespace dlinfer {

/// Becomes dlinfer.errors.DlinferArgumentError.
class ArgumentError : public std::runtime_error {
public:
    ArgumentError(std::string operator_name, std::string argument, std::string problem)
        : std::runtime_error(problem), operator_name(std::move(operator_name)), argument(std::move(argument)) {}
    const std::string operator_name, argument;
};

/// Address of memory that is not the CPU's, after all queued work on it is done. Raises if the host cannot reach it.
void* host_address(const at::Tensor& tensor);

/// Where kernels read and write a tensor's elements, once all queued work on them is done. The address of a tensor on another
/// device is never its data_ptr(). Ask after everything that torch itself does to the tensor (contiguous(), to()).
inline const void* readable(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor.const_data_ptr() : host_address(tensor); }
inline void* writable(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor.mutable_data_ptr() : host_address(tensor); }
template <typename Element>
const Element* readable(const at::Tensor& tensor) {
    return static_cast<const Element*>(readable(tensor));
}
template <typename Element>
Element* writable(const at::Tensor& tensor) {
    return static_cast<Element*>(writable(tensor));
}

/// Elements of a row lie side by side (or there is at most one).
inline bool has_dense_rows(const at::Tensor& tensor) { return tensor.dim() == 0 || tensor.size(-1) <= 1 || tensor.stride(-1) == 1; }

/// Whether kernels read and write this dtype: float32, bfloat16 or float16.
inline bool has_dtype(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf; }

/// Raises for a dtype that has none: memory is never read as something else.
inline Dtype dtype_of(at::ScalarType type) {
    TORCH_CHECK(has_dtype(type), "dlinfer's kernels take float32, bfloat16 and float16, got ", type);
    return type == at::kFloat ? Dtype::f32 : type == at::kBFloat16 ? Dtype::bf16 : Dtype::f16;
}

/// The answer of the reference, for calls that no kernel is written for (float64, 8-bit floats). Takes the arguments of the
/// operator's schema. May be called without the GIL.
template <typename Result, typename... Arguments>
Result reference(const char* name, const Arguments&... arguments) {
    pybind11::gil_scoped_acquire held;
    const auto kernels = pybind11::module_::import("dlinfer.reference").attr("KERNELS");
    return kernels[name](arguments...).template cast<Result>();
}

}  // namespace dlinfer
