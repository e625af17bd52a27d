// What the tools say of a stretch of Python. A signal's handler may raise at any step of Python, also between a call and the `try`
// behind it: these are counted where nothing of that kind can happen.
#include "python_call.h"
#include "thread.h"

namespace op_tools {
namespace {

struct Scope {
    PyObject_HEAD
    void (*enter)();
    void (*leave)();
};

PyObject* enter_scope(PyObject* self, PyObject*) {
    reinterpret_cast<Scope*>(self)->enter();
    Py_RETURN_NONE;
}

PyObject* leave_scope(PyObject* self, PyObject* const*, Py_ssize_t) {
    reinterpret_cast<Scope*>(self)->leave();
    Py_RETURN_NONE;
}

PyMethodDef scope_methods[] = {
    {"__enter__", enter_scope, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&leave_scope)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot scope_slots[] = {
    {Py_tp_methods, scope_methods},
    {Py_tp_doc, const_cast<char*>("For `with`, on this thread; nests.")},
    {0, nullptr},
};
PyType_Spec scope_spec = {"op_tools._native.Scope", sizeof(Scope), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, scope_slots};

PyObject* is_quiet(PyObject*, PyObject*) { return PyBool_FromLong(this_thread.quiet > 0); }

PyMethodDef quick_functions[] = {
    {"is_quiet", is_quiet, METH_NOARGS, "Whether this thread is in a tool."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_scopes(py::module_& module) {
    const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&scope_spec));
    const auto scope = [&](void (*enter)(), void (*leave)()) {
        auto* const made = reinterpret_cast<PyTypeObject*>(type.ptr());
        auto object = py::reinterpret_steal<py::object>(made->tp_alloc(made, 0));
        reinterpret_cast<Scope*>(object.ptr())->enter = enter;
        reinterpret_cast<Scope*>(object.ptr())->leave = leave;
        return object;
    };
    // The tools at work: nothing that they call is observed, led or profiled.
    module.attr("in_tool") = scope(&enter_tool, &leave_tool);
    // A call in which nobody looks inside.
    module.attr("as_a_whole") = scope([] { ++this_thread.unobserved; }, [] { --this_thread.unobserved; });
    // One of which tools may take what is inside.
    module.attr("looked_into") = scope([] { ++this_thread.api_calls; }, [] { --this_thread.api_calls; });
    // Functions are as they were: the compiler is at work.
    module.attr("not_led") = scope([] { ++this_thread.routed; }, [] { --this_thread.routed; });
    PyModule_AddFunctions(module.ptr(), quick_functions);
}

}  // namespace op_tools
