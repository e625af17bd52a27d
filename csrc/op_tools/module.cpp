// op_tools._native: what the operator tools need of torch below Python.
#include <ATen/record_function.h>

#include "python_call.h"
#include "thread.h"

PYBIND11_MODULE(_native, module) {
    module.doc() = "Operator calls observed through at::RecordFunction, or taken at the device's own kernels, and functions led through a mode.";
    op_tools::bind_observer(module);
    op_tools::bind_interceptor(module);
    op_tools::bind_routing(module);
    op_tools::bind_scopes(module);
    op_tools::bind_storages(module);
    op_tools::bind_copies(module);
    op_tools::bind_trees(module);
    op_tools::bind_call_sites(module);
    op_tools::bind_texts(module);
    op_tools::bind_csv(module);
    op_tools::bind_nodes(module);
    op_tools::bind_clocks(module);
    module.def("kernels_changed", &op_tools::kernels_changed, "A library of Python has changed the kernels of an operator.");
    module.def("leave_thread", [] { at::enableRecordFunction(false); }, "Never observe or profile this thread: it is the tools' own.");
    module.def("set_compiler", &op_tools::set_compiler, "The function of torch._dynamo that sets what compiles frames.");
    module.def("close_entrance", &op_tools::close_entrance, "The interpreter is about to end: no thread enters the tools any more.");
}
