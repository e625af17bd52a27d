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

/// Memory that kernels may read and write now: waits for what a device still has to do on it.
void settle(const at::Tensor& tensor);

}  // namespace dlinfer
