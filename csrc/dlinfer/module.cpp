// dlinfer._cpp: kernels of the vendor `cpp`. Every function takes the arguments of the operator's schema, positionally.
#include <ATen/Parallel.h>
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

#include "arguments.h"
#include "bindings.h"
#include "kernels/cpu_capability.h"
#include "kernels/parallel.h"
#include "../parallel/parallel_for.h"

namespace py = pybind11;

// ---- what kernels, which know no torch, take from it ----

namespace dlinfer {

void parallel_parts(int64_t count, int64_t grain, void (*work)(void*, int64_t, int64_t), void* context) {
    ditorch::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { work(context, begin, end); });
}

int threads() { return at::get_num_threads(); }

}  // namespace dlinfer

// ---- the module ----

PYBIND11_MODULE(_cpp, module) {
    dlinfer::cpu_capability();  // a wrong DLINFER_CPP_LEVEL is an error of the import, not of the first call
    module.def("cpu_capability", &dlinfer::cpu_capability_name, "The instructions that the kernels use.");
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
    dlinfer::bind_layers(module);
    dlinfer::bind_matmul(module);
    dlinfer::bind_moe(module);
}
