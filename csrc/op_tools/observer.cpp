// Operator calls seen through at::RecordFunction, below every mode and on every thread.
//
// A dispatch mode changes what it looks at: autograd's formulas ask whether one is on and then avoid in-place kernels. A record
// function is what torch's profiler uses; no kernel can tell that it is there. What is decided per operator is decided here;
// Python is entered only for a call that some tool wants, before it with its inputs and after it with its outputs.
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>

#include "python_call.h"
#include "sampler.h"

namespace op_tools {
namespace {

// ---- an operator, and what was decided about it ----

enum class Decision : uint8_t { unknown, unwanted, wanted };

struct Operator {
    std::string name, overload;
    Signature signature;
    DispatchKeySet autocast_kernels;  // of autocast, which calls it once more with other inputs
    bool composite;                   // made of other operators on all devices but
    uint64_t own_kernels;             // those with a kernel of its own, one bit each
    std::atomic<uint64_t> decided_at{0};
    std::atomic<Decision> decision{Decision::unknown};
    std::atomic<Sampler*> sampler{nullptr};  // what decides about single calls; it belongs to the subscription
    py::object subscription;  // read and written with the GIL held
};

// Everything here is reached from callbacks that may outlive the module: it is never destroyed.
struct Observer {
    py::object decide, begin, end, fail;
    // By the address of the operator's name, which is the operator's own; compared by name as well, since one that a library
    // took away may leave its address to another. Read and written with the GIL held.
    std::unordered_map<const void*, std::vector<std::unique_ptr<Operator>>> operators;
    std::vector<py::object> samplers;  // that were ever asked: a thread may ask one that is no longer in use
    std::atomic<uint64_t> version{1};
    std::atomic<uint64_t> device_types{0};  // one bit each
    at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
    std::atomic<bool> waits{false};  // for an operator that is not registered yet
};

Observer& observer() {
    static auto* made = new Observer();
    return *made;
}

struct Seen {
    const char* name = nullptr;
    Operator* op = nullptr;
};

thread_local std::array<Seen, 1024> recent;  // operators

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
        } else if (value.isTensorList()) {
            for (const at::Tensor& tensor : value.toTensorList()) add(tensor);
        } else if (value.isList()) {
            for (const IValue& item : value.toListRef()) {
                if (!item.isTensor() && !item.isNone()) return;
                if (item.isTensor()) add(item.toTensor());
            }
        }
    }
};

bool runs_a_kernel(const Operator& op, DispatchKeySet of_inputs) {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    const auto keys = (of_inputs | local.included_) - local.excluded_;
    if (!(of_inputs & wrapper_keys).empty() || !(keys & mode_keys).empty()) return false;
    if (!op.autocast_kernels.empty() && !(keys & op.autocast_kernels).empty()) return false;
    return !op.composite || (op.own_kernels >> static_cast<unsigned>(keys.highestBackendKey()) & 1) != 0;
}

std::unique_ptr<Operator> make_operator(const at::RecordFunction& fn) {
    const auto found_name = fn.operator_name();
    if (!found_name) return nullptr;
    const auto handle = c10::Dispatcher::singleton().findSchema(*found_name);
    if (!handle) return nullptr;
    uint64_t own = 0;
    for (uint8_t index = 1; index <= static_cast<uint8_t>(c10::BackendComponent::EndOfBackendKeys); ++index) {
        const auto key = c10::toRuntimePerBackendFunctionalityKey(DispatchKey::Dense, static_cast<c10::BackendComponent>(index));
        if (handle->hasKernelForDispatchKey(key)) own |= uint64_t{1} << index;
    }
    DispatchKeySet autocast;
    for (const auto key : c10::autocast_dispatch_keyset)
        if (handle->hasKernelForDispatchKey(key) && !handle->isKernelFallthroughKernel(key)) autocast = autocast.add(key);
    const bool composite = handle->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    return std::unique_ptr<Operator>(
        new Operator{fn.name(), fn.overload_name(), Signature(*handle), autocast, composite, own, {}, {}, {}, {}});
}

// The operator of a call; null where it is none (a range of the program, a node of autograd).
Operator* find_operator(const at::RecordFunction& fn) {
    const char* name = fn.name();
    auto& slot = recent[(reinterpret_cast<uintptr_t>(name) >> 4) % recent.size()];
    const auto is_it = [&](const Operator& op) { return op.name == name && op.overload == fn.overload_name(); };
    if (slot.name == name && slot.op != nullptr && is_it(*slot.op)) return slot.op;
    py::gil_scoped_acquire gil;
    auto& same_address = observer().operators[name];
    Operator* found = nullptr;
    for (const auto& op : same_address)
        if (is_it(*op)) found = op.get();
    if (found == nullptr) {
        auto made = make_operator(fn);
        if (made == nullptr) return nullptr;
        found = made.get();
        same_address.push_back(std::move(made));
    }
    slot = {name, found};
    return found;
}

bool is_wanted(Operator& op) {
    const auto version = observer().version.load(std::memory_order_acquire);
    if (op.decided_at.load(std::memory_order_acquire) != version) {
        ToolsAtWork work;
        auto subscription = py::reinterpret_steal<py::object>(
            PyObject_CallFunctionObjArgs(observer().decide.ptr(), op.signature.function.ptr(), nullptr));
        if (!subscription) throw py::error_already_set();
        // A call on another thread may still ask the sampler that was there before.
        Sampler* sampler = nullptr;
        if (!subscription.is_none() && py::hasattr(subscription, "sampler")) {
            const py::object given = subscription.attr("sampler");
            if (!given.is_none()) {
                sampler = given.cast<Sampler*>();
                auto& samplers = observer().samplers;
                if (samplers.empty() || !samplers.back().is(given)) samplers.push_back(given);
            }
        }
        op.sampler.store(sampler);
        op.decision.store(subscription.is_none() ? Decision::unwanted : Decision::wanted);
        op.subscription = std::move(subscription);
        op.decided_at.store(version, std::memory_order_release);
    }
    return op.decision.load(std::memory_order_relaxed) == Decision::wanted;
}

struct ObservedCall : at::ObserverContext {
    PyObject* call = nullptr;
    int exceptions = 0;
};

std::unique_ptr<at::ObserverContext> call_starts(const at::RecordFunction& fn) {
    if (this_thread.unobserved > 0) return nullptr;
    Operator* op = find_operator(fn);
    if (op == nullptr || !is_wanted(*op)) return nullptr;
    Inputs inputs;
    for (const auto& value : fn.inputs()) inputs.add(value);
    // One on other devices, or without tensors, is none of the tools' business, and neither is what it is made of.
    const bool concerned = (inputs.device_types & observer().device_types.load(std::memory_order_relaxed)) != 0;
    if (!runs_a_kernel(*op, inputs.keys)) return nullptr;
    Sampler* const sampler = op->sampler.load(std::memory_order_relaxed);
    if (concerned && sampler != nullptr && !sampler->takes(fn)) return nullptr;
    auto observed = std::make_unique<ObservedCall>();
    if (!concerned) {
        ++this_thread.unobserved;
        return observed;
    }
    observed->exceptions = std::uncaught_exceptions();
    {
        ToolsAtWork work;
        try {
            const auto [args, kwargs] = op->signature.to_python(fn.inputs());
            py::object call = observer().begin(op->subscription, op->signature.function, args, kwargs);
            if (call.is_none()) return nullptr;
            observed->call = call.release().ptr();
        } catch (py::error_already_set& error) {
            raise_in_program(error);
            return nullptr;
        }
    }
    ++this_thread.unobserved;
    return observed;
}

void call_ends(const at::RecordFunction& fn, at::ObserverContext* context) {
    if (context == nullptr) return;
    --this_thread.unobserved;
    auto& observed = *static_cast<ObservedCall*>(context);
    if (observed.call == nullptr) return;
    const bool failed = std::uncaught_exceptions() > observed.exceptions;
    ToolsAtWork work;
    const auto call = py::reinterpret_steal<py::object>(std::exchange(observed.call, nullptr));
    try {
        if (failed)
            observer().fail(call);
        else
            observer().end(call, result_to_python(fn.outputs()));
    } catch (py::error_already_set& error) {
        raise_in_program(error);
    }
}

// ---- for Python ----

void add_callback() {
    auto& all = observer();
    if (all.callback != at::INVALID_CALLBACK_HANDLE) return;
    all.callback = at::addGlobalCallback(at::RecordFunctionCallback(&call_starts, &call_ends)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

// Tells when a library registers an operator: a tool may be waiting for it.
struct Registrations : c10::OpRegistrationListener {
    void onOperatorRegistered(const c10::OperatorHandle&) override {
        if (observer().waits.exchange(false)) add_callback();
    }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

// `waits`: no operator that is there now is wanted.
void observe(py::object decide, py::object begin, py::object end, py::object fail, bool waits) {
    auto& all = observer();
    all.decide = std::move(decide), all.begin = std::move(begin), all.end = std::move(end), all.fail = std::move(fail);
    if (!waits) return add_callback();
    static auto* registrations = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Registrations>()));
    (void)registrations;
    all.waits.store(true);
}

void stop_observing() {
    auto& all = observer();
    all.waits.store(false);
    if (all.callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(all.callback);
    all.callback = at::INVALID_CALLBACK_HANDLE;
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

void bind_observer(py::module_& module) {
    bind_sampler(module);
    module.def("observe", &observe, "Observe from now on, on all threads: decide(function) once per operator, "
               "begin(subscription, function, args, kwargs) before a call, end(call, result) or fail(call) after it. "
               "waits: not before another operator is registered.");
    module.def("stop_observing", &stop_observing, "Observe no longer.");
    module.def("observe_devices", &observe_devices, "Which devices' tensors make a call worth looking at. All decisions are asked for again.");
}

}  // namespace op_tools
