// What a thread is doing, and how it enters Python from wherever torch has called us.
#pragma once

#include <torch/csrc/python_headers.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>

namespace op_tools {

namespace py = pybind11;
using c10::DispatchKey;
using c10::DispatchKeySet;

// Tensors that stand for others: the calls that are made for them on what they stand for are what is seen.
constexpr DispatchKeySet wrapper_keys =
    c10::python_ks | c10::functorch_transforms_ks | DispatchKeySet({DispatchKey::Functionalize, DispatchKey::Fake});
// Modes of the program and transforms, likewise.
constexpr DispatchKeySet mode_keys =
    wrapper_keys | DispatchKeySet({DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode,
                                   DispatchKey::PythonDispatcher, DispatchKey::PreDispatch, DispatchKey::Tracer});

struct ThreadState {
    int unobserved = 0;    // calls are not for the observer: part of one that it has seen, of a call taken as a whole, or the tools' own
    int at_work = 0;       // the tools are at work
    int api_calls = 0;     // calls of the program are under way of which tools may take what is inside
    int quiet = 0;         // in code of a tool, not only in that which leads to it
    int intercepting = 0;  // a call runs in a tool's own way
    int routed = 0;        // a function mode of the tools is on for a function that was led through it
    bool silenced = false;  // record functions are off on account of the tools
    PyObject* compiler = nullptr;  // what is to compile frames again when a tool is done
};

extern thread_local ThreadState this_thread;

// One more or one less, whatever comes of what is done in between.
class Counted {
   public:
    explicit Counted(int& count) : count_(count) { ++count_; }
    ~Counted() { --count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    int& count_;
};

// Whether this thread may enter Python, while it lives. A thread of C++ may not wait for the interpreter for longer than a moment:
// who has it may be waiting for that very thread, in a function of C++ that keeps the interpreter while threads of its own work.
class Entrance {
   public:
    Entrance();
    ~Entrance();
    Entrance(const Entrance&) = delete;
    Entrance& operator=(const Entrance&) = delete;
    explicit operator bool() const { return open_; }

   private:
    bool open_;
};

// The interpreter is about to end: no thread enters Python any more, and those that are in it have a moment to leave.
void close_entrance();

// The function of torch._dynamo that sets what compiles frames, once it is imported: what the tools do is not to be compiled.
void set_compiler(const py::object& set_eval_frame);

// Python on a thread that may come from anywhere, with the compiler kept away, an exception that is on its way left alone, and
// frames to spare: the program's deepest recursion has room for a tool.
class EnterPython {
   public:
    EnterPython();
    ~EnterPython();
    EnterPython(const EnterPython&) = delete;
    EnterPython& operator=(const EnterPython&) = delete;

   private:
    py::gil_scoped_acquire gil_;
    PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr, *compiler_ = nullptr;
};

// The tools begin to work on this thread, and are done: no call of theirs is observed, profiled or intercepted. Nests.
void hide();
void show();

// The same for Python of a tool that Python calls.
void enter_tool();
void leave_tool();

// The same around Python that is entered from C++, where nothing they do makes a graph or is transformed.
class ToolsAtWork {
   public:
    ToolsAtWork() { hide(); }
    ~ToolsAtWork() { show(); }
    ToolsAtWork(const ToolsAtWork&) = delete;
    ToolsAtWork& operator=(const ToolsAtWork&) = delete;

   private:
    EnterPython python_;
    c10::AutoGradMode no_graph_{false};
    c10::impl::ExcludeDispatchKeyGuard no_transforms_{mode_keys - c10::python_ks};
};

// An exception cannot leave a callback of torch. What the tools let out is the program's (an error of the device, met while they
// waited for it; an interruption): it is raised in the program as soon as that runs again.
void raise_in_program(py::error_already_set& error);

}  // namespace op_tools
