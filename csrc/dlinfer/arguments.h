// What the functions that Python calls share: errors that name an argument, and tensors as kernels take them.
#pragma once
#include <ATen/ATen.h>

#include <stdexcept>
#include <string>

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

}  // namespace dlinfer
