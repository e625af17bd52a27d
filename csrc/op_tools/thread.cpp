#include "thread.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace op_tools {

thread_local ThreadState this_thread;

// ---- who may enter Python ----

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::atomic<bool> closed{false};
std::atomic<int> inside{0};  // threads that are in Python or on their way

// Tries on a thread of its own whether the interpreter can be had: that one may wait as long as it takes.
class Canary {
   public:
    bool comes_back() {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!flies_) {
            std::thread([this] { fly(); }).detach();
            flies_ = true;
        }
        // One that is still out says what another would.
        if (sent_ == returned_) ++sent_, left_ = Clock::now();
        const auto number = sent_;
        news_.notify_all();
        const bool back = news_.wait_until(lock, left_ + patience_, [&] { return returned_ >= number; });
        // A program that keeps the interpreter is not to wait at each of its calls.
        patience_ = back ? std::min(patience_ * 2, longest) : std::max(patience_ / 2, shortest);
        return back;
    }

   private:
    void fly() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            news_.wait(lock, [this] { return sent_ > returned_; });
            lock.unlock();
            if (closed.load()) return;
            PyGILState_Release(PyGILState_Ensure());
            lock.lock();
            returned_ = sent_;
            news_.notify_all();
        }
    }

    static constexpr milliseconds shortest{1}, longest{500};
    std::mutex mutex_;
    std::condition_variable news_;
    uint64_t sent_ = 0, returned_ = 0;
    Clock::time_point left_;
    bool flies_ = false;
    milliseconds patience_ = longest;
};

// Never destroyed, since threads may outlive the module. A forked child has none of them.
std::atomic<Canary*> canary{nullptr};

void begin_anew() {
    canary.store(new Canary());
    inside.store(0);
}

bool can_enter() {
    if (closed.load()) return false;
    // What runs in parallel there is part of one kernel, whose caller may have kept the interpreter.
    if (at::in_parallel_region()) return false;
    // A thread that has run Python before belongs to Python or to autograd: nobody waits for those and keeps the interpreter.
    if (PyGILState_GetThisThreadState() != nullptr) return true;
    static std::once_flag once;
    std::call_once(once, [] {
        begin_anew();
        pthread_atfork(nullptr, nullptr, &begin_anew);
    });
    return canary.load()->comes_back();
}

}  // namespace

Entrance::Entrance() {
    inside.fetch_add(1);
    open_ = can_enter();
}

Entrance::~Entrance() { inside.fetch_sub(1); }

void close_entrance() {
    closed.store(true);
    py::gil_scoped_release others;
    for (int waited = 0; inside.load() > 0 && waited < 1000; ++waited) std::this_thread::sleep_for(milliseconds(1));
}

// ---- in Python ----

namespace {

PyObject* compiler = nullptr;

// Frames that a tool may need.
void spare_frames(int count) {
#if PY_VERSION_HEX >= 0x030C0000
    PyThreadState_Get()->py_recursion_remaining += count;
#else
    PyThreadState_Get()->recursion_remaining += count;
#endif
}
constexpr int frames = 200;

// Whether somebody else records functions: our own callback is not for this scope, a profiler's is. Turning them off costs more
// than a call, so that is done only for their sake.
bool recorded() {
    return at::isRecordFunctionEnabled() && at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

// What compiled frames until now.
PyObject* turn_compiler_off() {
    if (compiler == nullptr) return nullptr;
    PyObject* const before = PyObject_CallOneArg(compiler, Py_None);
    if (before == nullptr) PyErr_Clear();
    return before;
}

void turn_compiler_on(PyObject* before) {
    if (before == nullptr) return;
    Py_XDECREF(PyObject_CallOneArg(compiler, before));
    Py_DECREF(before);
}

}  // namespace

void set_compiler(const py::object& set_eval_frame) {
    Py_XDECREF(compiler);
    compiler = set_eval_frame.inc_ref().ptr();
}

EnterPython::EnterPython() {
    PyErr_Fetch(&type_, &value_, &trace_);
    spare_frames(frames);
    compiler_ = turn_compiler_off();
}

EnterPython::~EnterPython() {
    turn_compiler_on(compiler_);
    spare_frames(-frames);
    PyErr_Restore(type_, value_, trace_);
}

void hide() {
    auto& thread = this_thread;
    ++thread.unobserved;
    if (thread.at_work++ > 0) return;
    spare_frames(frames);
    thread.silenced = recorded();
    if (thread.silenced) at::enableRecordFunction(false);
}

void show() {
    auto& thread = this_thread;
    --thread.unobserved;
    if (--thread.at_work > 0) return;
    if (thread.silenced) at::enableRecordFunction(true);
    thread.silenced = false;
    spare_frames(-frames);
}

void enter_tool() {
    auto& thread = this_thread;
    if (thread.at_work == 0) thread.compiler = turn_compiler_off();
    hide();
    ++thread.quiet;
}

void leave_tool() {
    auto& thread = this_thread;
    --thread.quiet;
    show();
    if (thread.at_work == 0) turn_compiler_on(std::exchange(thread.compiler, nullptr));
}

void raise_in_program(py::error_already_set& error) {
    try {
        auto native = py::module_::import("op_tools.engine.native");
        const auto [thread, kind] = native.attr("raised_later")(error.value()).cast<std::pair<unsigned long, py::object>>();
        if (thread != 0) PyThreadState_SetAsyncExc(thread, kind.ptr());
    } catch (py::error_already_set& second) {
        second.discard_as_unraisable("op_tools: an error could not be raised in the program");
    }
}

}  // namespace op_tools
