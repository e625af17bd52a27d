// What torch_dipu._C offers of the allocator.
#pragma once
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

void bind_memory(pybind11::module_& m);
