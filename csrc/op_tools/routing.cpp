// Functions of torch that lists spell out, led through a function mode one by one: what no list names costs nothing.
//
// They are led in place: the function object is the one that it was, by whatever name, in whatever list, closure or partial function
// the program holds it, and whoever tells functions apart by identity finds what is expected. A function of C is led by what Python
// calls it by, a method of C by its entry in torch's table; one of Python by its code (`op_tools.engine.named`), to `Led` here.
#include <torch/csrc/python_headers.h>
#include <structmember.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/PyInterpreterHooks.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "python_call.h"
#include "thread.h"

namespace op_tools {
namespace {

using Functions = at::impl::PythonTorchFunctionTLS;

// The function mode of the tools; never destroyed.
PyObject* mode = nullptr;

using Modes = std::vector<std::shared_ptr<c10::SafePyObject>>;

Modes take_modes_off() {
    Modes modes;
    while (Functions::stack_len() > 0) modes.push_back(Functions::pop_stack());
    return modes;
}

void put_modes_on(Modes modes) {
    for (; !modes.empty(); modes.pop_back()) Functions::push_onto_stack(std::move(modes.back()));
}

// Below those of the program: what they make of a call is what is seen, and a mode that takes itself off takes off what is on top.
void push_mode(PyObject* pushed) {
    auto modes = take_modes_off();
    modes.push_back(std::make_shared<c10::SafePyObject>(Py_NewRef(pushed), c10::impl::getGlobalPyInterpreter()));
    put_modes_on(std::move(modes));
}

bool remove_mode(PyObject* removed) {
    auto modes = take_modes_off();
    const auto is_it = [&](const auto& other) { return other->ptr(c10::impl::getGlobalPyInterpreter()) == removed; };
    const auto found = std::find_if(modes.rbegin(), modes.rend(), is_it);
    std::shared_ptr<c10::SafePyObject> held;  // its end may run Python, which is to find the stack as it should be
    if (found != modes.rend()) {
        held = std::move(*found);
        modes.erase(std::next(found).base());
    }
    put_modes_on(std::move(modes));
    return held != nullptr;
}

class UnderMode {
   public:
    UnderMode() { push_mode(mode); }
    ~UnderMode() { remove_mode(mode); }
    UnderMode(const UnderMode&) = delete;
    UnderMode& operator=(const UnderMode&) = delete;
};

template <typename Function>
PyObject* lead(const Function& function) {
    auto& thread = this_thread;
    if (mode == nullptr || thread.routed > 0 || thread.at_work > 0 || at::impl::torch_function_all_disabled()) return function();
    const Counted routed(thread.routed);
    const UnderMode under_mode;
    return function();
}

// ---- functions of C: torch.add, torch.nn.functional.linear ----

// The function behind an object; the object's address is what Python calls it by. Its entry in torch's table is left alone: from
// that the object's hash is made.
PyCFunctionObject* function_of(const py::handle& object) {
    return PyCFunction_CheckExact(object.ptr()) ? reinterpret_cast<PyCFunctionObject*>(object.ptr()) : nullptr;
}

PyObject* call_function(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
    const auto positional = PyVectorcall_NARGS(count);
    const auto tuple = py::reinterpret_steal<py::object>(PyTuple_New(positional));
    const auto named = py::reinterpret_steal<py::object>(names == nullptr ? nullptr : PyDict_New());
    if (!tuple || (names != nullptr && !named)) return nullptr;
    for (Py_ssize_t index = 0; index < positional; ++index) PyTuple_SET_ITEM(tuple.ptr(), index, Py_NewRef(args[index]));
    for (Py_ssize_t index = 0; names != nullptr && index < PyTuple_GET_SIZE(names); ++index)
        if (PyDict_SetItem(named.ptr(), PyTuple_GET_ITEM(names, index), args[positional + index]) != 0) return nullptr;
    return Py_TYPE(function)->tp_call(function, tuple.ptr(), named.ptr());
}

PyObject* lead_function(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
    return lead([&] { return call_function(function, args, count, names); });
}

// ---- methods of C: torch.Tensor.add ----

struct LedMethod {
    PyMethodDef* entry = nullptr;
    PyCFunction original = nullptr;
};
constexpr size_t most_methods = 512;
std::array<LedMethod, most_methods> led_methods;  // with the GIL held, as all of this

PyObject* lead_with_keywords(PyCFunction method, PyObject* self, PyObject* args, PyObject* kwargs) {
    const auto original = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(method));
    return lead([&] { return original(self, args, kwargs); });
}

PyObject* lead_without_keywords(PyCFunction method, PyObject* self, PyObject* args) {
    return lead([&] { return method(self, args); });
}

// A method is not told which one it is: each that is led needs one of its own.
template <size_t index>
PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
    return lead_with_keywords(led_methods[index].original, self, args, kwargs);
}

template <size_t index>
PyObject* without_keywords(PyObject* self, PyObject* args) {
    return lead_without_keywords(led_methods[index].original, self, args);
}

template <size_t... index>
constexpr std::array<PyCFunctionWithKeywords, most_methods> all_with_keywords(std::index_sequence<index...>) {
    return {&with_keywords<index>...};
}
template <size_t... index>
constexpr std::array<PyCFunction, most_methods> all_without_keywords(std::index_sequence<index...>) {
    return {&without_keywords<index>...};
}
constexpr auto ours_with_keywords = all_with_keywords(std::make_index_sequence<most_methods>());
constexpr auto ours_without_keywords = all_without_keywords(std::make_index_sequence<most_methods>());

// The entry in torch's table: Python reads it at each call, and so do methods that the program has bound before.
PyMethodDef* entry_of(const py::handle& object) {
    return Py_IS_TYPE(object.ptr(), &PyMethodDescr_Type) ? reinterpret_cast<PyMethodDescrObject*>(object.ptr())->d_method : nullptr;
}

int convention_of(const PyMethodDef* entry) { return entry->ml_flags & ~(METH_STATIC | METH_CLASS | METH_COEXIST); }

PyCFunction ours(const PyMethodDef* entry, size_t index) {
    if (convention_of(entry) != (METH_VARARGS | METH_KEYWORDS)) return ours_without_keywords[index];
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ours_with_keywords[index]));
}

void lead_method(PyMethodDef* entry) {
    const auto has_it = [&](const LedMethod& method) { return method.entry == entry; };
    if (std::any_of(led_methods.begin(), led_methods.end(), has_it)) return;  // another name of one that is led
    const auto free = std::find_if(led_methods.begin(), led_methods.end(), [](const LedMethod& method) { return method.entry == nullptr; });
    if (free == led_methods.end()) throw py::value_error("too many methods");
    *free = {entry, entry->ml_meth};
    entry->ml_meth = ours(entry, free - led_methods.begin());
}

// ---- both ----

std::vector<PyCFunctionObject*> led_functions;

bool can_be_led(const py::handle& object) {
    if (const auto* function = function_of(object))
        return convention_of(function->m_ml) == (METH_VARARGS | METH_KEYWORDS) &&
               (function->vectorcall == nullptr || function->vectorcall == &lead_function);
    const auto* entry = entry_of(object);
    if (entry == nullptr) return false;
    const int convention = convention_of(entry);
    return convention == (METH_VARARGS | METH_KEYWORDS) || convention == METH_VARARGS || convention == METH_NOARGS || convention == METH_O;
}

void lead_c_functions(const py::iterable& objects) {
    for (const auto& object : objects) {
        if (!can_be_led(object)) throw py::type_error("not a function of C that can be led");
        if (auto* function = function_of(object)) {
            if (function->vectorcall != nullptr) continue;
            led_functions.push_back(reinterpret_cast<PyCFunctionObject*>(object.inc_ref().ptr()));
            function->vectorcall = &lead_function;
        } else {
            lead_method(entry_of(object));
        }
    }
}

void release_c_functions() {
    for (auto* function : std::exchange(led_functions, {})) {
        if (function->vectorcall == &lead_function) function->vectorcall = nullptr;
        Py_DECREF(function);
    }
    for (size_t index = 0; index < most_methods; ++index) {
        auto& [entry, original] = led_methods[index];
        if (entry == nullptr || entry->ml_meth != ours(entry, index)) continue;  // somebody has put theirs in front, and still calls ours
        entry->ml_meth = original;
        led_methods[index] = {};
    }
}

// ---- functions of Python ----

struct Led {
    PyObject_HEAD
    PyObject* function;
    vectorcallfunc call;
};

PyObject* call_led(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
    PyObject* const function = reinterpret_cast<Led*>(self)->function;
    return lead([&] { return PyObject_Vectorcall(function, args, count, names); });
}

PyObject* new_led(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* function = nullptr;
    if (!PyArg_ParseTuple(args, "O", &function)) return nullptr;
    PyObject* const self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    reinterpret_cast<Led*>(self)->function = Py_NewRef(function);
    reinterpret_cast<Led*>(self)->call = &call_led;
    return self;
}

void free_led(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    Py_XDECREF(reinterpret_cast<Led*>(self)->function);
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef led_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Led, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot led_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&new_led)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&free_led)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_members, led_members},
    {Py_tp_doc, const_cast<char*>("Calls a function under the mode of the tools.")},
    {0, nullptr},
};
PyType_Spec led_spec = {"op_tools._native.Led", sizeof(Led), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, led_slots};

}  // namespace

void bind_routing(py::module_& module) {
    module.attr("Led") = py::reinterpret_steal<py::object>(PyType_FromSpec(&led_spec));
    module.attr("most_methods") = most_methods;
    module.def("push_function_mode", [](const py::handle& pushed) { push_mode(pushed.ptr()); }, "Put a mode at the bottom of this thread's stack.");
    module.def("remove_function_mode", [](const py::handle& removed) { return remove_mode(removed.ptr()); },
               "Take a mode off this thread's stack, wherever it stands; whether it was there.");
    module.def("lead_to", [](const py::object& given) {
        Py_XSETREF(mode, given.is_none() ? nullptr : given.inc_ref().ptr());
    }, "The function mode under which functions run that are led; None: as they are.");
    module.def("can_be_led", &can_be_led, "Whether it is a function of C that can be led.");
    module.def("lead_c_functions", &lead_c_functions, "Lead these functions of C, besides those that are.");
    module.def("release_c_functions", &release_c_functions, "Lead no function of C any more.");
}

}  // namespace op_tools
