// Calls taken at the device's own kernels: a tool that runs an operator in its own way stands where the kernel stood.
//
// Below autograd and everything else that looks at a call: the formulas are those of the device, and what a tool gives back goes
// on as the kernel's result. The kernel that was there is called for whatever the tool leaves alone, and is put back at the end.
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "python_call.h"

namespace op_tools {
namespace {

// With the GIL held; never destroyed, since kernels may outlive the module.
py::object& runner() {
    static auto* made = new py::object();
    return *made;
}

class TakenKernel final : public c10::OperatorKernel {
   public:
    TakenKernel(const c10::OperatorHandle& handle, DispatchKey key) : signature_(new Signature(handle)), key_(key) {
        if (handle.hasComputedKernelForDispatchKey(key)) kernel_ = handle.getComputedKernelForDispatchKey(key);
    }

    void operator()(const c10::OperatorHandle& handle, DispatchKeySet keys, torch::jit::Stack* stack) {
        if (this_thread.at_work > 0 || this_thread.intercepting > 0) return run_kernel(handle, keys, stack);
        const auto& schema = handle.schema();
        EnterPython python;
        ++this_thread.intercepting;
        py::object result;
        try {
            const auto inputs = torch::jit::last(*stack, schema.arguments().size());
            const auto [args, kwargs] = signature_->to_python(inputs);
            result = runner()(signature_->function, args, kwargs);
        } catch (py::error_already_set& error) {
            --this_thread.intercepting;
            error.restore();
            python_error raised;  // as torch raises what Python code of its own raises
            raised.persist();
            throw raised;
        }
        --this_thread.intercepting;
        torch::jit::drop(*stack, schema.arguments().size());
        push(schema, result, stack);
    }

   private:
    void run_kernel(const c10::OperatorHandle& handle, DispatchKeySet keys, torch::jit::Stack* stack) const {
        TORCH_CHECK_NOT_IMPLEMENTED(kernel_, "Could not run '", handle.operator_name(), "' with arguments from the '", key_,
                                    "' backend: the device has no kernel for it.");
        kernel_->callBoxed(handle, keys, stack);
    }

    static void push(const c10::FunctionSchema& schema, const py::object& result, torch::jit::Stack* stack) {
        const auto& returns = schema.returns();
        if (returns.size() == 1) {
            stack->push_back(torch::jit::toIValue(result, returns[0].real_type()));
        } else if (returns.size() > 1) {
            const auto values = result.cast<py::sequence>();
            for (size_t index = 0; index < returns.size(); ++index)
                stack->push_back(torch::jit::toIValue(values[index], returns[index].real_type()));
        }
    }

    Signature* signature_;  // never freed: kernels are called on threads that do not hold the GIL
    DispatchKey key_;
    std::optional<c10::SafeKernelFunction> kernel_;
};

class NoWarnings final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

using Place = std::tuple<std::string, std::string, DispatchKey>;

// The kernels that are taken now.
std::map<Place, c10::RegistrationHandleRAII>& taken() {
    static auto* made = new std::map<Place, c10::RegistrationHandleRAII>();
    return *made;
}

void take_kernel(const std::string& name, const std::string& overload, DispatchKey key) {
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto handle = dispatcher.findSchema({name, overload});
    if (!handle) return;
    // What is made of other operators is taken in those.
    const bool composite = handle->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
                           handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                           handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (composite && !handle->hasKernelForDispatchKey(key)) return;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<TakenKernel>(*handle, key));
    taken().emplace(Place{name, overload, key},
                    dispatcher.registerImpl({name, overload}, key, std::move(kernel), std::nullopt, nullptr, "op_tools"));
}

void release() { taken().clear(); }

// run(function, args, kwargs) for each call of these operators on these devices.
void take(const std::vector<std::pair<std::string, std::string>>& names, const std::vector<std::string>& devices, py::object run) {
    release();
    runner() = std::move(run);
    NoWarnings nobody;  // that a kernel is replaced is what is wanted
    c10::WarningUtils::WarningHandlerGuard guard(&nobody);
    for (const auto& device : devices) {
        const auto key = c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device));
        for (const auto& [name, overload] : names) take_kernel(name, overload, key);
    }
}

// Somebody has put a kernel in front of one that is taken, or has taken one away.
void take_again(const std::string& name, const std::string& overload) {
    NoWarnings nobody;
    c10::WarningUtils::WarningHandlerGuard guard(&nobody);
    std::vector<Place> places;
    for (const auto& [place, handle] : taken())
        if (std::get<0>(place) == name && std::get<1>(place) == overload) places.push_back(place);
    for (const auto& place : places) {
        taken().erase(place);
        take_kernel(name, overload, std::get<2>(place));
    }
}

}  // namespace

void bind_interceptor(py::module_& module) {
    module.def("take", &take, "Take the kernels of these operators on these devices: run(function, args, kwargs) for each call.");
    module.def("take_again", &take_again, "The kernels of an operator have changed: take the one that is there now.");
    module.def("release", &release, "Put the kernels back.");
}

}  // namespace op_tools
