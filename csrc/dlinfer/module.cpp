// dlinfer._cpp: kernels of the vendor `cpp`. Every function takes the arguments of the operator's schema, positionally.
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

#include "arguments.h"
#include "bindings.h"
#include "kernels/levels.h"

namespace py = pybind11;

PYBIND11_MODULE(_cpp, module) {
    dlinfer::level();  // a wrong DLINFER_CPP_LEVEL is an error of the import, not of the first call
    module.def("level", &dlinfer::level_name, "The instructions that the kernels use.");
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) std::rethrow_exception(thrown);
        } catch (const dlinfer::ArgumentError& error) {
            const auto type = py::module_::import("dlinfer.errors").attr("DlinferArgumentError");
            const auto made = type(error.operator_name, error.argument, error.what());
            PyErr_SetObject(type.ptr(), made.ptr());
        }
    });
    dlinfer::bind_attention(module);
    dlinfer::bind_cache(module);
    dlinfer::bind_rotary(module);
    dlinfer::bind_layers(module);
    dlinfer::bind_matmul(module);
    dlinfer::bind_moe(module);
    dlinfer::bind_quantised(module);
}
