// How long calls take on their device, forward and backward.
//
// Events bracket the call, and backward of its nodes from the first gradient that reaches them to the last that leaves them. The
// nodes have hooks of C++ that record events and note what the gradients look like: autograd's threads run no Python for it.
// Nothing waits before the times are read. The CPU has no events: its calls have the host's time.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "call_nodes.h"
#include "python_call.h"
#include "tensor_text.h"

namespace op_tools {
namespace {

using torch::autograd::variable_list;
using Nanoseconds = int64_t;

Nanoseconds host_time() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// From the host's steady clock to the time of day, fixed so that calls keep their order and ranks their distance.
Nanoseconds since_1970(Nanoseconds time) {
    static const Nanoseconds distance =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count() - host_time();
    return time + distance;
}

// A moment of a device. An event cannot say when it was recorded: the host's time is that before, so that a call never seems to
// reach into the next one.
struct Moment {
    Nanoseconds host = 0;
    std::optional<c10::Event> event;
};

struct Span {
    std::optional<Moment> start, end;
};

// What the clocks of one run of a tool have in common. A graph may outlive the tool: then its hooks do nothing.
class Clocks {
   public:
    void mark(c10::Device device, std::optional<Moment>& moment) {
        if (!moment) moment.emplace();
        if (!device.is_cpu() && !moment->event) moment->event = take(device);
        moment->host = host_time();
        if (moment->event) moment->event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }

    // Milliseconds between start and end. Waits for the end.
    double length(c10::Device device, const Span& span) const {
        if (device.is_cpu()) return static_cast<double>(span.end->host - span.start->host) / 1e6;
        span.end->event->synchronize();
        return span.start->event->elapsedTime(*span.end->event);
    }

    void give_back(c10::Device device, Span& span) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto* moment : {&span.start, &span.end})
            if (*moment && (*moment)->event) spare_[device.index()].push_back(std::move(*(*moment)->event));
        span = {};
    }

    std::atomic<bool> running{true};

   private:
    c10::Event take(c10::Device device) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto& events = spare_[device.index()];
        while (!events.empty()) {
            c10::Event event = std::move(events.back());
            events.pop_back();
            if (event.device_type() == device.type()) return event;
        }
        return c10::Event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    }

    std::mutex mutex_;
    std::map<c10::DeviceIndex, std::vector<c10::Event>> spare_;
};

using Gradients = std::vector<std::optional<TensorFacts>>;

// One run of backward through a call.
struct Run {
    Span span;
    Gradients to_inputs, of_outputs;
};

// Backward of one call. Its hooks may run on any thread.
class BackwardClock : public std::enable_shared_from_this<BackwardClock> {
   public:
    BackwardClock(std::shared_ptr<Clocks> clocks, c10::Device device, size_t inputs, size_t outputs)
        : clocks_(std::move(clocks)), device_(device), inputs_(inputs), outputs_(outputs) {}

    void attach(std::vector<CallNode> nodes);

    // Whether a backward may come, or is under way.
    bool waits() const { return waits_.load(std::memory_order_relaxed); }
    // What was measured last, if anything was, and how long it took: nothing is measured any more. Without the GIL.
    std::optional<Run> close(double& milliseconds);
    // Why nothing was, once it is closed; empty where nothing went wrong.
    const std::string& error() const { return error_; }

    // From the hooks.
    void arrives();
    void passed(const CallNode& node, const variable_list& gave, const variable_list& got);

   private:
    void enter();
    void finish();
    void ended(int task);
    template <typename Function>
    void guarded(const Function& function);

    const std::shared_ptr<Clocks> clocks_;
    const c10::Device device_;
    const size_t inputs_, outputs_;
    size_t nodes_ = 0, last_nodes_ = 0;
    std::atomic<bool> waits_{true};

    std::mutex mutex_;
    int task_ = -1;    // the run of backward under way
    size_t open_ = 0;  // nodes that gradients have not left yet
    Run running_;
    std::optional<Run> done_;
    bool closed_ = false;
    std::string error_;
};

struct Arrives : torch::autograd::FunctionPreHook {
    explicit Arrives(std::shared_ptr<BackwardClock> clock) : clock_(std::move(clock)) {}
    variable_list operator()(const variable_list& gradients) override {
        clock_->arrives();
        return gradients;
    }
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}  // what is compiled is not measured

    std::shared_ptr<BackwardClock> clock_;
};

struct Passed : torch::autograd::FunctionPostHook {
    Passed(std::shared_ptr<BackwardClock> clock, CallNode node) : clock_(std::move(clock)), node_(std::move(node)) {}
    variable_list operator()(const variable_list& gave, const variable_list& got) override {
        clock_->passed(node_, gave, got);
        return gave;
    }
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

    std::shared_ptr<BackwardClock> clock_;
    CallNode node_;
};

void BackwardClock::attach(std::vector<CallNode> nodes) {
    nodes_ = nodes.size();
    for (const auto& node : nodes) last_nodes_ += node.is_last;
    const auto self = shared_from_this();
    for (auto& node : nodes) {
        Node& hooked = *node.node;
        if (!node.outputs.empty()) hooked.add_pre_hook(std::make_unique<Arrives>(self));
        if (!node.outputs.empty() || node.is_last) hooked.add_post_hook(std::make_unique<Passed>(self, std::move(node)));
    }
}

// What goes wrong here is the clock's own: the program goes on.
template <typename Function>
void BackwardClock::guarded(const Function& function) {
    if (!clocks_->running.load(std::memory_order_relaxed)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    try {
        function();
    } catch (const std::exception& error) {
        closed_ = true;
        waits_.store(false);
        error_ = std::string("the backward of a call could not be measured: ") + error.what();
    }
}

void BackwardClock::enter() {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task == task_) return;
    task_ = task;
    open_ = last_nodes_;
    clocks_->give_back(device_, running_.span);
    running_.to_inputs.assign(inputs_, std::nullopt);
    running_.of_outputs.assign(outputs_, std::nullopt);
    if (nodes_ > 1) {
        // A run that was asked for some gradients only never reaches all nodes, nor does one that starts at some of the outputs.
        auto self = weak_from_this();
        torch::autograd::Engine::get_default_engine().queue_callback([self, task] {
            if (const auto clock = self.lock()) clock->ended(task);
        });
    }
    clocks_->mark(device_, running_.span.start);
}

void BackwardClock::arrives() {
    guarded([&] { enter(); });
}

void BackwardClock::passed(const CallNode& node, const variable_list& gave, const variable_list& got) {
    guarded([&] {
        enter();
        for (const auto& [number, output] : node.outputs)
            if (number < got.size() && got[number].defined()) running_.of_outputs[output].emplace(got[number]);
        for (const auto& [slot, input] : node.to_inputs) {
            if (slot >= gave.size() || !gave[slot].defined()) continue;
            // An input used twice inside one call gets two gradients; autograd adds them elsewhere.
            auto& given = running_.to_inputs[input];
            const TensorFacts one(gave[slot]);
            given ? given->add(one) : void(given.emplace(one));
        }
        if (!node.is_last) return;
        clocks_->mark(device_, running_.span.end);
        if (--open_ == 0) finish();
    });
}

void BackwardClock::ended(int task) {
    guarded([&] {
        if (task != task_) return;
        if (!running_.span.end) clocks_->mark(device_, running_.span.end);
        finish();
    });
}

void BackwardClock::finish() {
    if (done_) clocks_->give_back(device_, done_->span);
    done_ = std::move(running_);
    running_ = {};
    task_ = -1;
    waits_.store(false);
}

std::optional<Run> BackwardClock::close(double& milliseconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    waits_.store(false);
    if (!done_) return std::nullopt;
    milliseconds = clocks_->length(device_, done_->span);
    auto run = std::exchange(done_, std::nullopt);
    const auto began = run->span.start->host;
    clocks_->give_back(device_, run->span);
    run->span.start = Moment{began, {}};
    return run;
}

// ---- a call ----

// For the thread that calls; what is left of it then is read by any.
class CallClock {
   public:
    CallClock(std::shared_ptr<Clocks> clocks, const std::vector<at::Tensor>& inputs, bool backward);

    void stop(PyObject* result);
    bool waits() const { return backward_ && backward_->waits(); }
    py::tuple read();
    double began_us() const { return static_cast<double>(since_1970(began_)) / 1e3; }
    bool on_host() const { return device_.is_cpu(); }

   private:
    const std::shared_ptr<Clocks> clocks_;
    c10::Device device_{c10::kCPU};
    Nanoseconds began_ = 0;
    Span forward_;
    size_t inputs_;
    std::unique_ptr<CallNodes> before_;
    std::shared_ptr<BackwardClock> backward_;
};

CallClock::CallClock(std::shared_ptr<Clocks> clocks, const std::vector<at::Tensor>& inputs, bool backward)
    : clocks_(std::move(clocks)), inputs_(inputs.size()) {
    for (const auto& tensor : inputs)
        if (tensor.defined() && !tensor.is_cpu() && !tensor.is_meta()) {
            device_ = tensor.device();
            break;
        }
    if (backward && c10::GradMode::is_enabled()) before_ = std::make_unique<CallNodes>(inputs);
    clocks_->mark(device_, forward_.start);
    began_ = forward_.start->host;
}

void CallClock::stop(PyObject* result) {
    clocks_->mark(device_, forward_.end);
    if (before_ && before_->any()) {
        const auto outputs = tensors_in(result);
        auto nodes = before_->between(outputs);
        if (!nodes.empty()) {
            backward_ = std::make_shared<BackwardClock>(clocks_, device_, inputs_, outputs.size());
            backward_->attach(std::move(nodes));
        }
    }
    before_.reset();
}

py::list texts(const Gradients& gradients) {
    py::list found;
    for (const auto& one : gradients)
        found.append(one ? py::object(py::str(one->text())) : py::object(py::none()));
    return found;
}

// (milliseconds, None or why or (began_us, milliseconds, gradients of inputs, gradients of outputs)): for the last time.
py::tuple CallClock::read() {
    double forward = 0, length = 0;
    std::optional<Run> run;
    {
        py::gil_scoped_release no_gil;
        forward = clocks_->length(device_, forward_);
        clocks_->give_back(device_, forward_);
        if (backward_) run = backward_->close(length);
    }
    if (!run && backward_ && !backward_->error().empty()) return py::make_tuple(forward, backward_->error());
    if (!run) return py::make_tuple(forward, py::none());
    const auto began = static_cast<double>(since_1970(run->span.start->host)) / 1e3;
    return py::make_tuple(forward, py::make_tuple(began, length, texts(run->to_inputs), texts(run->of_outputs)));
}

}  // namespace

void bind_clocks(py::module_& module) {
    py::class_<CallClock>(module, "CallClock", "How long one call takes.")
        .def("stop", [](CallClock& clock, const py::object& result) { clock.stop(result.ptr()); }, "The call has returned this.")
        .def_property_readonly("waits", &CallClock::waits, "Whether backward of the call may come.")
        .def_property_readonly("on_host", &CallClock::on_host, "Whether the host's time is taken.")
        .def_property_readonly("began_us", &CallClock::began_us, "When the host started it, in microseconds since 1970.")
        .def("read", &CallClock::read,
             "Milliseconds, and of backward (began_us, milliseconds, texts of the gradients of inputs, of outputs), None if there was "
             "none, or why it was not measured. Waits for the device; nothing is measured any more.");
    py::class_<Clocks, std::shared_ptr<Clocks>>(module, "Clocks", "The clocks of one run of a tool.")
        .def(py::init<>())
        .def("start", [](const std::shared_ptr<Clocks>& clocks, const py::list& tensors, bool backward) {
            return std::make_unique<CallClock>(clocks, tensors_in(tensors.ptr()), backward);
        }, py::arg("tensors"), py::arg("backward"), "A call with these tensors begins. backward: measure that as well.")
        .def("end", [](Clocks& clocks) { clocks.running.store(false); }, "The tool is off.");
}

}  // namespace op_tools
