// op_tools._native: what the operator tools need of torch below Python.
#include <ATen/record_function.h>

#include "python_call.h"

namespace op_tools {
namespace {

PyObject* hide_tools(PyObject*, PyObject*) {
    hide();
    Py_RETURN_NONE;
}
PyObject* show_tools(PyObject*, PyObject*) {
    show();
    Py_RETURN_NONE;
}
PyObject* skip(PyObject*, PyObject*) {
    ++this_thread.unobserved;
    Py_RETURN_NONE;
}
PyObject* unskip(PyObject*, PyObject*) {
    --this_thread.unobserved;
    Py_RETURN_NONE;
}

// Called around every call of the program while a tool is on: as quick as Python's own functions can be.
PyMethodDef quick_functions[] = {
    {"hide", hide_tools, METH_NOARGS, "The tools begin to work on this thread: nothing that they call is observed or profiled; nests."},
    {"show", show_tools, METH_NOARGS, "The tools are done."},
    {"skip", skip, METH_NOARGS, "A call begins in which nobody looks inside; nests."},
    {"unskip", unskip, METH_NOARGS, "It is over."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace
}  // namespace op_tools

PYBIND11_MODULE(_native, module) {
    module.doc() = "Operator calls observed through at::RecordFunction, or taken at the device's own kernels.";
    op_tools::bind_observer(module);
    op_tools::bind_interceptor(module);
    op_tools::bind_storages(module);
    op_tools::bind_call_sites(module);
    op_tools::bind_texts(module);
    op_tools::bind_csv(module);
    op_tools::bind_nodes(module);
    op_tools::bind_clocks(module);
    module.def("leave_thread", [] { at::enableRecordFunction(false); }, "Never observe or profile this thread: it is the tools' own.");
    module.def("set_compiler", &op_tools::set_compiler, "The function of torch._dynamo that sets what compiles frames.");
    PyModule_AddFunctions(module.ptr(), op_tools::quick_functions);
}
