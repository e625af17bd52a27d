// The tensors among the arguments of a call: what op_tools.trees finds, asked for at each call that a tool looks at.
#include <torch/csrc/autograd/python_variable.h>

#include "python_call.h"

namespace op_tools {
namespace {

void collect_all(const py::handle& values, py::list& found);

void collect_tensors(const py::handle& value, py::list& found) {
    PyObject* const object = value.ptr();
    if (object == Py_None || PyLong_Check(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object)) return;
    if (THPVariable_Check(object)) {
        found.append(value);
    } else if (PyTuple_Check(object) || PyList_Check(object)) {
        collect_all(value, found);
    } else if (PyDict_Check(object)) {
        collect_all(value.attr("values")(), found);
    }
}

void collect_all(const py::handle& values, py::list& found) {
    // A list of the program's may hold itself.
    if (Py_EnterRecursiveCall(" among the arguments of a call") != 0) throw py::error_already_set();
    try {
        for (const py::handle item : values) collect_tensors(item, found);
    } catch (...) {
        Py_LeaveRecursiveCall();
        throw;
    }
    Py_LeaveRecursiveCall();
}

}  // namespace

void bind_trees(py::module_& module) {
    module.def("tensors_of", [](const py::handle& value) {
        py::list found;
        collect_tensors(value, found);
        return found;
    }, "The tensors of a tree, in order.");
    module.def("flat_tensors", [](const py::handle& args, const py::handle& kwargs) {
        py::list found;
        collect_all(args, found);
        if (PyObject_IsTrue(kwargs.ptr()) == 1) collect_all(kwargs.attr("values")(), found);
        return found;
    }, "Those among the arguments of a call.");
}

}  // namespace op_tools
