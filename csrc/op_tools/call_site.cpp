// Where in the program a call stands, read from Python's stack: what op_tools.engine.site does, in a tenth of the time.
//
// Calls at one line in the same modules share one object, so that what it says of itself is worked out once.
#include <c10/util/hash.h>

#include <unordered_map>
#include <vector>

#include "python_call.h"

namespace op_tools {
namespace {

constexpr size_t most_known = 20'000;

enum class FrameKind : uint8_t { torch_or_ours, program, engine, module };

struct Position {
    PyObject* code = nullptr;  // the call site holds it
    int instruction = -1;
    std::vector<PyObject*> modules;  // innermost first

    size_t hash() const {
        size_t value = c10::get_hash(code, instruction);
        for (const auto* module : modules) value = c10::hash_combine(value, std::hash<const void*>()(module));
        return value;
    }
};

struct KnownSite {
    Position position;
    std::vector<py::object> references;  // weak, to the modules
    py::object site;

    bool is(const Position& other) const {
        if (position.code != other.code || position.instruction != other.instruction || position.modules != other.modules) return false;
        for (size_t index = 0; index < references.size(); ++index)  // one that was freed may have left its address to another
            if (PyWeakref_GetObject(references[index].ptr()) != other.modules[index]) return false;
        return true;
    }
};

// Never destroyed: threads may read after the module is gone.
struct Sites {
    py::object kind_of, make;
    std::unordered_map<PyObject*, FrameKind> kinds;  // of code objects, each held
    std::unordered_multimap<size_t, KnownSite> known;
};

Sites& sites() {
    static auto* made = new Sites();
    return *made;
}

FrameKind kind_of(PyObject* code) {
    auto& kinds = sites().kinds;
    const auto found = kinds.find(code);
    if (found != kinds.end()) return found->second;
    if (kinds.size() >= most_known) {  // code made on the fly
        for (const auto& [held, kind] : kinds) Py_DECREF(held);
        kinds.clear();
    }
    const auto kind = static_cast<FrameKind>(sites().kind_of(py::handle(code)).cast<int>());
    Py_INCREF(code);
    kinds.emplace(code, kind);
    return kind;
}

py::object module_of(PyFrameObject* frame) {
    const auto locals = py::reinterpret_steal<py::object>(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals"));
    if (!locals) throw py::error_already_set();
    auto module = py::reinterpret_steal<py::object>(PyMapping_GetItemString(locals.ptr(), "self"));
    if (!module) PyErr_Clear();  // deleted there
    return module;
}

py::object read_site() {
    auto& all = sites();
    Position position;
    std::vector<py::object> modules;
    py::object code_of_call, frame_of_call;
    bool in_tool = true;
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
        auto* const current = reinterpret_cast<PyFrameObject*>(frame.ptr());
        auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(current)));
        switch (kind_of(code.ptr())) {
            case FrameKind::torch_or_ours: break;
            case FrameKind::module:
                if (auto module = module_of(current)) modules.push_back(std::move(module));
                break;
            case FrameKind::program:
                if (!frame_of_call) code_of_call = std::move(code), frame_of_call = frame;
                break;
            case FrameKind::engine:
                // What lies between the engine and here is a tool, wherever its source is.
                if (in_tool) frame_of_call = code_of_call = py::object();
                in_tool = false;
                break;
        }
        frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(current)));
    }
    position.code = code_of_call.ptr();
    auto* const called = reinterpret_cast<PyFrameObject*>(frame_of_call.ptr());
    if (called != nullptr) position.instruction = PyFrame_GetLasti(called);
    for (const auto& module : modules) position.modules.push_back(module.ptr());
    const auto key = position.hash();
    const auto [first, last] = all.known.equal_range(key);
    for (auto one = first; one != last; ++one)
        if (one->second.is(position)) return one->second.site;

    if (all.known.size() >= most_known) all.known.clear();
    KnownSite made;
    py::tuple outermost_first(modules.size());
    for (const auto& module : modules) {
        auto reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(module.ptr(), nullptr));
        if (!reference) throw py::error_already_set();
        outermost_first[modules.size() - 1 - made.references.size()] = reference;
        made.references.push_back(std::move(reference));
    }
    const int line = called != nullptr ? PyFrame_GetLineNumber(called) : 0;
    made.site = all.make(code_of_call ? code_of_call : py::object(py::none()), line, std::move(outermost_first));
    made.position = std::move(position);
    return all.known.emplace(key, std::move(made))->second.site;
}

}  // namespace

void bind_call_sites(py::module_& module) {
    module.def("read_site", &read_site, "The call site of the program that the stack shows.");
    module.def("describe_sites", [](py::object kind_of, py::object make) {
        sites().kind_of = std::move(kind_of), sites().make = std::move(make);
    }, py::arg("kind_of"), py::arg("make"), "kind_of(code) says what a frame is, make(code, line, modules) is a call site.");
}

}  // namespace op_tools
