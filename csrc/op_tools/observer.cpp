// Operator calls seen through at::RecordFunction, below every mode and on every thread.
//
// A dispatch mode changes what it looks at: autograd's formulas ask whether one is on and then avoid in-place kernels. A record
// function is what torch's profiler uses; no kernel can tell that it is there. What is decided per operator is decided here;
// Python is entered only for a call that some tool wants, before it with its inputs and after it with its outputs.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include "differentiated.h"
#include "kernels_in_front.h"
#include "operators.h"
#include "thread.h"

namespace op_tools {
namespace {

// Everything here is reached from callbacks that may outlive the module: it is never destroyed.
struct Observer {
    py::object decide, begin, end, fail, complain;  // with the GIL held
    std::vector<py::object> samplers;  // that were ever asked: a thread may ask one that is no longer in use
    std::atomic<uint64_t> version{1};
    std::atomic<uint64_t> device_types{0};  // one bit each
    // With the lock of operators.
    at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
    bool waits = false;  // for an operator that is not registered yet
    // What seeing calls has taken, for a tool with a budget: those that go by, and the way into Python.
    std::atomic<int64_t> nanoseconds{0};
};

using Clock = std::chrono::steady_clock;
// Of the calls that go by one in so many is timed. What torch does to show a call takes about as long as looking at it.
constexpr uint32_t timed_one_in = 32;
constexpr int64_t with_boxing = 2;

int64_t nanoseconds_since(Clock::time_point started) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started).count();
}

Observer& observer() {
    static auto* made = new Observer();
    return *made;
}

// ---- which calls ----

struct Inputs {
    DispatchKeySet keys;
    uint64_t device_types = 0;

    void add(const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        keys = keys | tensor.key_set();
        device_types |= uint64_t{1} << static_cast<unsigned>(tensor.device().type());
    }
    void add(const IValue& value) {
        if (value.isTensor()) {
            add(value.toTensor());
        } else if (value.isList()) {
            for (const IValue& item : value.toListRef()) {
                if (!item.isTensor() && !item.isNone()) return;
                if (item.isTensor()) add(item.toTensor());
            }
        }
    }
};

bool autocast_comes_first(const Operator& op, DispatchKeySet keys) {
    for (const auto key : keys & c10::autocast_dispatch_keyset)
        if (op.handle.hasKernelForDispatchKey(key) && !op.handle.isKernelFallthroughKernel(key)) return true;
    return false;
}

// The mode of the older vmap (gradients of many directions at once) stays on while the calls for each of them are made; all that
// it stands in front of are random operators.
constexpr DispatchKeySet stands_in_front = mode_keys.remove(DispatchKey::VmapMode);

// Asked at each call, since a library may put kernels in and take them away.
bool runs_a_kernel(const Operator& op, DispatchKeySet of_inputs, bool differentiated) {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    auto keys = (of_inputs | local.included_) - local.excluded_;
    if (differentiated) keys = keys - functorch_modes;
    if (!(of_inputs & wrapper_keys).empty() || !(keys & stands_in_front).empty()) return false;
    if (autocast_comes_first(op, keys)) return false;
    if (!op.handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return true;
    return op.handle.hasKernelForDispatchKey(c10::toRuntimePerBackendFunctionalityKey(DispatchKey::Dense, keys.highestBackendKey()));
}

// With the GIL held, which Python may have let go of meanwhile: what was decided is of the version that it is marked with.
void decide(Operator& op) {
    const auto version = observer().version.load(std::memory_order_acquire);
    if (op.decided_at.load(std::memory_order_relaxed) == version) return;
    if (op.signature == nullptr) op.signature = std::make_unique<Signature>(op.handle);
    const py::object subscription = observer().decide(op.signature->function);
    Sampler* sampler = nullptr;
    bool ties = false, by_own_name = true;
    if (!subscription.is_none()) {
        by_own_name = subscription.attr("by_own_name").cast<bool>();
        ties = subscription.attr("ties").cast<bool>();
        const py::object given = subscription.attr("sampler");
        if (!given.is_none()) {
            sampler = given.cast<Sampler*>();
            auto& known = observer().samplers;
            const auto is_it = [&](const py::object& other) { return other.is(given); };
            if (std::none_of(known.begin(), known.end(), is_it)) known.push_back(given);
        }
    }
    op.sampler.store(sampler, std::memory_order_relaxed);
    op.by_own_name.store(by_own_name, std::memory_order_relaxed);
    op.decision.store(subscription.is_none() ? Decision::unwanted : Decision::wanted, std::memory_order_relaxed);
    op.subscription = subscription;
    op.ties = ties;
    op.decided_at.store(version, std::memory_order_release);
}

// ---- a call ----

struct ObservedCall : at::ObserverContext {
    explicit ObservedCall(Operator& called) : op(called) {}

    Operator& op;
    PyObject* call = nullptr;  // none: nobody looks at it, nor at what it is made of
    Shown shown;
    bool ties = false, differentiated = false;
    int exceptions = 0;
};

// Do something of the tools; whether it was done. What they let out is the program's; anything else that goes wrong is said.
template <typename Work>
bool guarded(const Operator& op, const Work& work) {
    std::string trouble;
    try {
        work();
        return true;
    } catch (py::error_already_set& error) {
        raise_in_program(error);
        return false;
    } catch (const std::exception& error) {
        trouble = error.what();
    }
    try {
        observer().complain(op.schema.name(), trouble);
    } catch (py::error_already_set& error) {
        raise_in_program(error);
    }
    return false;
}

// Whether a tool may take a call that none wants for its own name: it is part of a call of the program, or of backward.
bool is_inside() { return this_thread.api_calls > 0 || torch::autograd::get_current_node() != nullptr; }

bool is_wanted(Operator& op) {
    if (op.decided_at.load(std::memory_order_acquire) != observer().version.load(std::memory_order_acquire)) {
        const Entrance entrance;
        if (!entrance) return false;
        const ToolsAtWork work;
        if (!guarded(op, [&] { decide(op); })) return false;
    }
    if (op.decision.load(std::memory_order_relaxed) != Decision::wanted) return false;
    return op.by_own_name.load(std::memory_order_relaxed) || is_inside();
}

// A call begins; null where no tool is to be told of its end.
std::unique_ptr<ObservedCall> begin_call(Operator& op, Values values) {
    if (!is_wanted(op)) return nullptr;
    const bool differentiated = is_differentiated();
    std::vector<IValue> held;
    if (differentiated) {
        held = values_held_by(values);
        values = Values(held.data(), held.size());
    }
    Inputs inputs;
    for (const auto& value : values) inputs.add(value);
    // One on other devices, or without tensors, is none of the tools' business, and neither is what it is made of.
    const bool concerned = (inputs.device_types & observer().device_types.load(std::memory_order_relaxed)) != 0;
    if (!runs_a_kernel(op, inputs.keys, differentiated)) return nullptr;
    Sampler* const sampler = op.sampler.load(std::memory_order_relaxed);
    if (concerned && sampler != nullptr && !sampler->takes(op.schema.name(), op.schema.overload_name(), values)) return nullptr;
    auto observed = std::make_unique<ObservedCall>(op);
    if (concerned) {
        const auto started = Clock::now();
        const Entrance entrance;
        if (!entrance) return nullptr;
        const ToolsAtWork work;
        observer().nanoseconds.fetch_add(nanoseconds_since(started), std::memory_order_relaxed);
        guarded(op, [&] {
            decide(op);  // tools may have come and gone while this thread waited
            if (op.subscription.is_none()) return;
            observed->ties = op.ties;
            observed->differentiated = differentiated;
            const auto [args, kwargs] = op.signature->to_python(values, &observed->shown);
            py::object call = observer().begin(op.subscription, op.signature->function, args, kwargs);
            if (!call.is_none()) observed->call = call.release().ptr();
        });
        if (observed->call == nullptr) {
            observed->shown.clear();
            return nullptr;
        }
    }
    observed->exceptions = std::uncaught_exceptions();
    ++this_thread.unobserved;
    return observed;
}

// It has ended, or failed.
void end_call(ObservedCall& observed, bool failed, Values results) {
    --this_thread.unobserved;
    if (observed.call == nullptr) return;
    const auto started = Clock::now();
    const Entrance entrance;
    if (!entrance) return observed.shown.abandon();  // without Python nothing can be let go of
    const ToolsAtWork work;
    observer().nanoseconds.fetch_add(nanoseconds_since(started), std::memory_order_relaxed);
    const auto call = py::reinterpret_steal<py::object>(std::exchange(observed.call, nullptr));
    guarded(observed.op, [&] {
        if (failed) {
            observer().fail(call);
            return;
        }
        results = last(results, observed.op.schema.returns().size());
        std::vector<IValue> held;
        if (observed.differentiated) {
            held = values_held_by(results);
            results = Values(held.data(), held.size());
        }
        observer().end(call, result_to_python(results, observed.shown, observed.ties));
    });
    observed.shown.clear();
}

// ---- all calls, by record functions ----

std::unique_ptr<at::ObserverContext> call_seen(const at::RecordFunction& fn) {
    Operator* const op = find_operator(fn);
    return op == nullptr ? nullptr : begin_call(*op, last(fn.inputs(), op->schema.arguments().size()));
}

std::unique_ptr<at::ObserverContext> call_starts(const at::RecordFunction& fn) {
    if (this_thread.unobserved > 0) return nullptr;
    thread_local uint32_t calls = 0;
    if (++calls % timed_one_in != 0) return call_seen(fn);
    const auto started = Clock::now();
    auto observed = call_seen(fn);
    if (observed == nullptr)
        observer().nanoseconds.fetch_add(nanoseconds_since(started) * timed_one_in * with_boxing, std::memory_order_relaxed);
    return observed;
}

void call_ends(const at::RecordFunction& fn, at::ObserverContext* context) {
    if (context == nullptr) return;
    auto& observed = *static_cast<ObservedCall*>(context);
    const bool failed = std::uncaught_exceptions() > observed.exceptions;
    end_call(observed, failed, Values(fn.outputs().data(), fn.outputs().size()));
}

// ---- the calls of a few operators, at their kernels ----

// In front of a kernel of autograd, or of one of the device's that is reached below autograd.
class ObservedKernel final : public KernelInFront {
   public:
    using KernelInFront::KernelInFront;

    void operator()(const c10::OperatorHandle& handle, DispatchKeySet keys, torch::jit::Stack* stack) {
        if (this_thread.unobserved > 0) return run_kernel(handle, keys, stack);
        Operator* const op = find_operator(handle);
        const auto values = [&](size_t count) { return last(Values(stack->data(), stack->size()), count); };
        const auto observed = op == nullptr ? nullptr : begin_call(*op, values(handle.schema().arguments().size()));
        if (observed == nullptr) return run_kernel(handle, keys, stack);
        try {
            run_kernel(handle, keys, stack);
        } catch (...) {
            end_call(*observed, true, {});
            throw;
        }
        end_call(*observed, false, values(op->schema.returns().size()));
    }
};

// What is made of other operators is observed in those. Autograd has no kernel of its own for what has no derivative.
bool is_seen_at(const c10::OperatorHandle& handle, DispatchKey key) {
    const auto backend = c10::toRuntimePerBackendFunctionalityKey(DispatchKey::Dense, c10::toBackendComponent(key));
    if (handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) && !handle.hasKernelForDispatchKey(backend)) return false;
    const auto of_its_own = [&](DispatchKey k) { return handle.hasKernelForDispatchKey(k) && !handle.isKernelFallthroughKernel(k); };
    if (c10::toFunctionalityKey(key) != DispatchKey::AutogradFunctionality) return key == backend || of_its_own(key);
    return handle.hasKernelForDispatchKey(key) ? of_its_own(key) : handle.hasKernelForDispatchKey(DispatchKey::Autograd);
}

KernelsInFront& observed_kernels() {
    static auto* made = new KernelsInFront(&is_seen_at, [](const c10::OperatorHandle& handle, DispatchKey key) {
        return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ObservedKernel>(handle, key));
    });
    return *made;
}

// The keys with which calls come to the kernels of these types of devices, where such a device can be.
std::vector<DispatchKey> keys_of(uint64_t device_types) {
    const auto empty = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
    std::vector<DispatchKey> keys;
    for (uint8_t index = 1; index <= static_cast<uint8_t>(c10::BackendComponent::EndOfBackendKeys); ++index) {
        const auto backend = static_cast<c10::BackendComponent>(index);
        const auto dense = c10::toRuntimePerBackendFunctionalityKey(DispatchKey::Dense, backend);
        if (!empty.hasKernelForDispatchKey(dense)) continue;
        if ((device_types >> static_cast<unsigned>(c10::dispatchKeyToDeviceType(dense)) & 1) == 0) continue;
        for (const auto functionality : {DispatchKey::AutogradFunctionality, DispatchKey::Dense, DispatchKey::Sparse,
                                         DispatchKey::SparseCsr, DispatchKey::Quantized, DispatchKey::NestedTensor})
            keys.push_back(c10::toRuntimePerBackendFunctionalityKey(functionality, backend));
    }
    return keys;
}

// ---- for Python ----

// With the lock of operators.
void add_callback() {
    auto& all = observer();
    all.waits = false;
    if (all.callback != at::INVALID_CALLBACK_HANDLE) return;
    all.callback = at::addGlobalCallback(at::RecordFunctionCallback(&call_starts, &call_ends)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

// With the lock of operators.
void remove_callback() {
    auto& all = observer();
    if (all.callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(all.callback);
    all.callback = at::INVALID_CALLBACK_HANDLE;
}

// For a while no call is to be seen: then none costs anything. What stands at kernels stays there.
void rest(bool resting) {
    const std::lock_guard<std::mutex> lock(lock_of_operators());
    const auto callback = observer().callback;
    if (callback == at::INVALID_CALLBACK_HANDLE) return;
    resting ? at::disableCallback(callback) : at::reenableCallback(callback);
}

double seconds_seeing() { return static_cast<double>(observer().nanoseconds.load(std::memory_order_relaxed)) * 1e-9; }

// A library has registered an operator: a tool may be waiting for it.
void operator_registered() {
    auto& all = observer();
    const std::lock_guard<std::mutex> lock(lock_of_operators());
    if (all.waits) add_callback();
}

// `few`: the operators whose calls alone are wanted, of those that are there now; they are observed at their kernels.
void observe(py::object decide, py::object begin, py::object end, py::object fail, py::object complain,
             const std::optional<OperatorNames>& few) {
    follow_registrations(&operator_registered);
    auto& all = observer();
    all.decide = std::move(decide), all.begin = std::move(begin), all.end = std::move(end), all.fail = std::move(fail);
    all.complain = std::move(complain);
    if (few)
        observed_kernels().put(*few, keys_of(all.device_types.load()));
    else
        observed_kernels().clear();
    const std::lock_guard<std::mutex> lock(lock_of_operators());
    if (few) {
        remove_callback();
        all.waits = true;
    } else {
        add_callback();
    }
}

void stop_observing() {
    observed_kernels().clear();
    const std::lock_guard<std::mutex> lock(lock_of_operators());
    observer().waits = false;
    remove_callback();
}

void observe_devices(const std::vector<std::string>& names, bool accelerators) {
    uint64_t types = 0;
    const auto bit = [](at::DeviceType type) { return uint64_t{1} << static_cast<unsigned>(type); };
    if (accelerators) types = ~(bit(at::kCPU) | bit(at::kMeta));
    for (const auto& name : names) types |= bit(c10::Device(name).type());
    observer().device_types.store(types);
    observer().version.fetch_add(1);
}

}  // namespace

void observe_again(const std::string& name, const std::string& overload) { observed_kernels().put_again(name, overload); }

void bind_observer(py::module_& module) {
    bind_sampler(module);
    module.def("observe", &observe, "Observe from now on, on all threads: decide(function) once per operator, "
               "begin(subscription, function, args, kwargs) before a call, end(call, result) or fail(call) after it, "
               "complain(name, trouble) of a call that cannot be shown. few: the only operators that are wanted of those that there are.");
    module.def("rest", &rest, py::arg("resting"), "See no calls for a while, or see them again.");
    module.def("seconds_seeing", &seconds_seeing, "What seeing calls go by has taken so far, and the way into Python for those that are wanted.");
    module.def("stop_observing", &stop_observing, "Observe no longer.");
    module.def("observe_devices", &observe_devices, "Which devices' tensors make a call worth looking at. All decisions are asked for again.");
}

}  // namespace op_tools
