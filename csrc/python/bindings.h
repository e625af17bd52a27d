// Parts of torch_dipu._C in files of their own.
#pragma once
#include <pybind11/pybind11.h>

namespace dipu_python {

void bind_streams(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);

}  // namespace dipu_python
