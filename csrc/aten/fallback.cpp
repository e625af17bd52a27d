#include "fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <cstdio>
#include <memory>

#include "../runtime/generator.h"
#include "../runtime/sync_debug.h"
#include "cpu_operands.h"
#include "deterministic.h"
#include "instrumentation.h"
#include "settings.h"

namespace dipu {
namespace {

// What the operands of a call tell: the device it runs on, and whether anything but dense tensors takes part.
struct Operands {
    OpRecord& record;
    torch::jit::Stack& stack;
    size_t first;
    int device = -1;
    bool sparse = false;
    bool cpu_tensor = false;   // one with dimensions, or one to be written: only numbers may come from the CPU
    bool cpu_operand = false;  // any, scalars too

    template <class Visit>
    void each_tensor(Visit visit) {
        for (size_t i = 0; i < record.written.size(); ++i) {
            const c10::IValue& value = stack[first + i];
            const bool written = record.written[i];
            if (value.isTensor()) {
                visit(value.toTensor(), written);
            } else if (value.isTensorList()) {
                for (const at::Tensor& tensor : value.toTensorList()) visit(tensor, written);
            } else if (value.isOptionalTensorList()) {
                for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
                    if (tensor) visit(*tensor, written);
            }
        }
    }

    void look(const at::Tensor& tensor, bool written) {
        if (!tensor.defined()) return;
        if (tensor.is_privateuseone()) {
            const int here = tensor.device().index();
            TORCH_CHECK(device < 0 || device == here, "Expected all tensors to be on the same device, but found at least two devices, dipu:",
                        device, " and dipu:", here, "! (when running ", record.name, ")");
            device = here;
            sparse = sparse || tensor.layout() != at::kStrided;
        } else if (tensor.is_cpu()) {
            cpu_operand = true;
            cpu_tensor = cpu_tensor || written || tensor.dim() > 0;
        }
    }

    bool first_on_device() const { return stack[first].isTensor() && on_device(stack[first].toTensor()); }

    void check_devices() const {
        const bool allowed = record.copies || (record.cpu_indices && first_on_device());
        TORCH_CHECK(!cpu_tensor || device < 0 || allowed,
                    "Expected all tensors to be on the same device, but found at least two devices, dipu:", device, " and cpu! (when running ",
                    record.name, ")");
    }
};

c10::IValue value_to_cpu(const c10::IValue& value, bool written, CpuOperands& on_cpu) {
    if (value.isTensor()) return on_cpu.to_cpu(value.toTensor(), written);
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorList()) list.push_back(on_cpu.to_cpu(tensor, written));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
            list.push_back(tensor ? std::optional<at::Tensor>(on_cpu.to_cpu(*tensor, written)) : std::nullopt);
        return list;
    }
    return value;
}

// Devices and generators in the arguments become the CPU's; an absent generator the device's own engine.
void translate_settings(Operands& operands) {
    bool given = false;
    for (size_t i = 0; i < operands.record.written.size(); ++i) {
        c10::IValue& value = operands.stack[operands.first + i];
        if (value.isDevice() && value.toDevice().is_privateuseone()) {
            if (operands.device < 0) operands.device = index_or_current(value.toDevice());
            value = c10::Device(c10::kCPU);
        } else if (value.isGenerator() && value.toGenerator().device().is_privateuseone()) {
            given = true;
            value = engine_of(value.toGenerator());
        }
    }
    // The generator alone brought the call here.
    TORCH_CHECK(!given || operands.device >= 0, "Expected a 'cpu' device type for generator but found 'dipu'");
    const int position = operands.record.generator;
    if (position < 0 || operands.device < 0) return;
    c10::IValue& generator = operands.stack[operands.first + position];
    if (generator.isNone()) generator = engine_of(default_generator(operands.device));
}

void call_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool by_keys) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (by_keys)
        op.callBoxed(stack);
    else
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void results_to_device(Operands& operands, CpuOperands& on_cpu) {
    const size_t count = operands.record.op.schema().returns().size();
    const size_t first = operands.stack.size() - count;
    for (size_t i = 0; i < count; ++i) {
        c10::IValue& value = operands.stack[first + i];
        if (value.isTensor()) {
            value = on_cpu.to_device(std::move(value).toTensor(), operands.device);
        } else if (value.isTensorList()) {
            std::vector<at::Tensor> tensors = value.toTensorVector();
            value = c10::IValue();  // the list must not count as another owner
            c10::List<at::Tensor> list;
            for (auto& tensor : tensors) list.push_back(on_cpu.to_device(std::move(tensor), operands.device));
            value = std::move(list);
        }
    }
}

// An in-place operator over an alias needs nothing back from its kernel: it may run in the stream's order, later.
struct Deferred {
    c10::OperatorHandle op;
    torch::jit::Stack stack;
    std::vector<c10::Storage> kept;
};

int run_deferred(void* argument, char* error, size_t size) {
    auto* deferred = static_cast<Deferred*>(argument);
    try {
        call_cpu(deferred->op, &deferred->stack, false);
        return 0;
    } catch (const c10::Error& failure) {
        std::snprintf(error, size, "%s", failure.what_without_backtrace());
    } catch (const std::exception& failure) {
        std::snprintf(error, size, "%s", failure.what());
    }
    return 1;
}

bool deferrable(const Operands& operands) {
    // what lives on the CPU may change, or be read, as soon as the call returns
    if (operands.cpu_operand || !operands.first_on_device()) return false;
    return operands.record.in_place && operands.record.generator < 0 && !operands.sparse && operands.device >= 0 && vendor()->stream_run &&
           operands.stack[operands.first].isTensor() && operands.stack[operands.first].toTensor().numel() > 0;
}

void defer(Operands& operands, CpuOperands& on_cpu) {
    auto* deferred = new Deferred{operands.record.op, {}, {}};
    at::Tensor self = operands.stack[operands.first].toTensor();
    operands.each_tensor([&](const at::Tensor& tensor, bool) {
        if (on_device(tensor)) deferred->kept.push_back(tensor.storage());
    });
    for (size_t i = 0; i < operands.record.written.size(); ++i)
        deferred->stack.push_back(value_to_cpu(operands.stack[operands.first + i], operands.record.written[i], on_cpu));
    operands.stack.resize(operands.first);
    operands.stack.emplace_back(std::move(self));
    const char* name = operands.record.name.c_str();
    ProfiledWork profiled(DeviceWork::Alias, name, operands.device);
    check(vendor()->stream_run(current_stream_handle(operands.device), name, run_deferred,
                               [](void* argument) { delete static_cast<Deferred*>(argument); }, deferred),
          name);
    profiled.queued();
}

// Over an alias it is the device's work; over copies it is the host's.
void run_cpu_kernel(Operands& operands, bool by_alias) {
    if (!by_alias || operands.device < 0) return call_cpu(operands.record.op, &operands.stack, operands.sparse);
    ProfiledWork profiled(DeviceWork::AliasNow, operands.record.name.c_str(), operands.device);
    call_cpu(operands.record.op, &operands.stack, operands.sparse);
    profiled.queued();
}

// What the user asked to be told of calls that fall back.
void report(OpRecord& record, bool by_alias, FallbackSetting setting) {
    if (settings.dump > 0) print_call(record, "fallback to cpu");
    if (!settings.log_fallback) return;
    std::string why = "no DIOPI function takes this call";
    if (setting != FallbackSetting::None) why = std::string(variable_of(setting)) + (setting == FallbackSetting::WithoutLibrary ? "=DISABLE" : " names it");
    std::fprintf(stderr, "dipu: %s falls back to the cpu, %s: %s\n", record.name.c_str(), by_alias ? "by alias" : "by copies", why.c_str());
}

// Counts why a call falls back.
FallbackSetting count_fallback_setting(OpRecord& record, Form form) {
    const bool may_be = settings.any_list.load(std::memory_order_relaxed) || settings.without_diopi.load(std::memory_order_relaxed);
    if (C10_LIKELY(!may_be)) return FallbackSetting::None;
    const FallbackSetting setting = setting_that_falls_back(record, form);
    record.by_setting[static_cast<int>(setting)].fetch_add(1, std::memory_order_relaxed);
    return setting;
}

}  // namespace

void fallback(OpRecord& record, torch::jit::Stack* stack) {
    Operands operands{record, *stack, stack->size() - record.written.size()};
    operands.each_tensor([&](const at::Tensor& tensor, bool written) { operands.look(tensor, written); });
    operands.check_devices();
    if (C10_UNLIKELY(record.may_alert) && operands.device >= 0) alert_if_nondeterministic(record, *stack);
    translate_settings(operands);

    const bool by_alias = vendor().has(DIPU_FEATURE_ALIAS);
    CpuOperands on_cpu(by_alias, record.asks_requires_grad);
    const Way way = by_alias ? Way::Alias : Way::Copy;
    FallbackSetting setting = FallbackSetting::None;
    if (operands.device >= 0) {
        record.count(way);
        setting = count_fallback_setting(record, operands.cpu_operand && !operands.cpu_tensor ? Form::Scalar : Form::Tensors);
    }
    if (C10_UNLIKELY(settings.dump.load(std::memory_order_relaxed) > 0 || settings.log_fallback.load(std::memory_order_relaxed)) &&
        operands.device >= 0 && !instrumentation_is_silent())
        report(record, by_alias, setting);
    std::optional<Stopwatch> stopwatch;
    if (C10_UNLIKELY(settings.timing.load(std::memory_order_relaxed)) && operands.device >= 0) {
        stopwatch.emplace(record, way);
        if (!by_alias) operands.each_tensor([&](const at::Tensor& tensor, bool) { record.bytes += on_device(tensor) ? tensor.nbytes() : 0; });
    }
    if (vendor().has(DIPU_FEATURE_ASYNCHRONOUS) && operands.device >= 0) {
        if (by_alias && deferrable(operands)) return defer(operands, on_cpu);
        if (by_alias) note_synchronization(record.name.c_str());
        synchronize_device(operands.device);
    }
    if (!by_alias) {
        if (operands.device >= 0) note_synchronization(record.name.c_str());
        operands.each_tensor([&](const at::Tensor& tensor, bool written) { on_cpu.add(tensor, written); });
    }
    for (size_t i = 0; i < record.written.size(); ++i) {
        c10::IValue& value = (*stack)[operands.first + i];
        if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) value = value_to_cpu(value, record.written[i], on_cpu);
    }
    run_cpu_kernel(operands, by_alias);
    if (record.writes) on_cpu.write_back();
    results_to_device(operands, on_cpu);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { fallback(op_record(op), stack); }

void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { call_cpu(op, stack, false); }

namespace {

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    OpRecord& record = op_record(op);
    ProfiledOperator profiled(record.name);
    if (!must_show_call()) return fallback(record, stack);
    const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    InstrumentedCall call(record, torch::jit::Stack(stack->end() - static_cast<std::ptrdiff_t>(record.written.size()), stack->end()));
    fallback(record, stack);
    call.finish(torch::jit::Stack(stack->end() - results, stack->end()));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>()); }

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Torch takes these for composites of other operators, but their code knows only its own devices.
bool composite_in_name_only(const c10::OperatorName& name) {
    return (name.name == "aten::mode" && name.overload_name == "values") || name.name == "aten::conj_physical_";
}

}  // namespace

// Operators with a CPU kernel go straight to it: torch's defaults would compute the shape of structured ones twice, and know no
// sparse tensors.
DIPU_API int register_direct_fallbacks() {
    using c10::DispatchKey;
    int count = 0;
    for (const auto& [from, to] : {std::pair{DispatchKey::CPU, DispatchKey::PrivateUse1},
                                   std::pair{DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1},
                                   std::pair{DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1}}) {
        auto* library = new torch::Library(torch::Library::IMPL, "aten", to, __FILE__, __LINE__);  // lives as long as the process
        auto& dispatcher = c10::Dispatcher::singleton();
        for (const auto& name : dispatcher.getAllOpNames()) {
            if (!starts_with(name.name, "aten::")) continue;
            auto op = dispatcher.findSchema(name);
            if (!op || op->hasKernelForDispatchKey(to)) continue;
            if (!op->hasKernelForDispatchKey(from) && !(from == DispatchKey::CPU && composite_in_name_only(name))) continue;
            std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
            library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
            ++count;
        }
    }
    return count;
}

}  // namespace dipu
