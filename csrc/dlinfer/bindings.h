// The functions that put the operators of a family into the module.
#pragma once
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

namespace dlinfer {

void bind_attention(pybind11::module_& module);
void bind_cache(pybind11::module_& module);
void bind_layers(pybind11::module_& module);
void bind_matmul(pybind11::module_& module);
void bind_moe(pybind11::module_& module);

}  // namespace dlinfer
