// Calls taken at the device's own kernels: a tool that runs an operator in its own way stands where the kernel stood.
//
// Below autograd and everything else that looks at a call: the formulas are those of the device, and what a tool gives back goes
// on as the kernel's result. The kernel that was there is called for whatever the tool leaves alone, and is put back at the end.
#include <c10/core/TensorOptions.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "kernels_in_front.h"
#include "python_call.h"
#include "thread.h"

namespace op_tools {
namespace {

// With the GIL held; never destroyed, since kernels may outlive the module.
py::object& runner() {
    static auto* made = new py::object();
    return *made;
}

// Interned, since kernels are made anew each time that a tool starts; never freed, since they are called on any thread.
Signature& signature_of(const c10::OperatorHandle& handle) {
    static auto* all = new std::unordered_map<c10::OperatorName, std::pair<c10::FunctionSchema, std::unique_ptr<Signature>>>();
    const auto found = all->find(handle.operator_name());
    if (found != all->end() && found->second.first == handle.schema()) return *found->second.second;
    if (found != all->end()) found->second.second.release();  // of another operator that had its name
    auto& [schema, signature] =
        all->insert_or_assign(handle.operator_name(), std::pair(handle.schema(), std::make_unique<Signature>(handle))).first->second;
    return *signature;
}

class TakenKernel final : public KernelInFront {
   public:
    TakenKernel(const c10::OperatorHandle& handle, DispatchKey key) : KernelInFront(handle, key), signature_(&signature_of(handle)) {}

    void operator()(const c10::OperatorHandle& handle, DispatchKeySet keys, torch::jit::Stack* stack) {
        if (this_thread.at_work > 0 || this_thread.intercepting > 0) return run_kernel(handle, keys, stack);
        const Entrance entrance;
        if (!entrance) return run_kernel(handle, keys, stack);
        const auto& schema = handle.schema();
        const EnterPython python;
        const Counted intercepting(this_thread.intercepting);
        try {
            const auto [args, kwargs] = signature_->to_python(last(Values(stack->data(), stack->size()), schema.arguments().size()));
            const py::object result = runner()(signature_->function, args, kwargs);
            torch::jit::drop(*stack, schema.arguments().size());
            push(schema, result, stack);
        } catch (py::error_already_set& error) {
            error.restore();
            python_error raised;  // as torch raises what Python code of its own raises
            raised.persist();
            throw raised;
        }
    }

   private:
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

    Signature* signature_;
};

// What is made of other operators is taken in those.
bool has_kernel(const c10::OperatorHandle& handle, DispatchKey key) {
    const bool composite = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
                           handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                           handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    return !composite || handle.hasKernelForDispatchKey(key);
}

KernelsInFront& taken() {
    static auto* made = new KernelsInFront(&has_kernel, [](const c10::OperatorHandle& handle, DispatchKey key) {
        return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<TakenKernel>(handle, key));
    });
    return *made;
}

// run(function, args, kwargs) for each call of these operators on these devices.
void take(const OperatorNames& names, const std::vector<std::string>& devices, py::object run) {
    runner() = std::move(run);
    std::vector<DispatchKey> keys;
    for (const auto& device : devices) keys.push_back(c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device)));
    taken().put(names, keys);
}

}  // namespace

void kernels_changed(const std::string& name, const std::string& overload) {
    taken().put_again(name, overload);
    observe_again(name, overload);  // what observes stands in front of those
}

void bind_interceptor(py::module_& module) {
    module.def("take", &take, "Take the kernels of these operators on these devices: run(function, args, kwargs) for each call.");
    module.def("release", [] { taken().clear(); }, "Put the kernels back.");
}

}  // namespace op_tools
