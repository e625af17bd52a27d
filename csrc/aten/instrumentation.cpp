#include "instrumentation.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Formatting.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "cpu_operands.h"

namespace dipu {

bool& inside_instrumented_call() {
    thread_local bool now = false;
    return now;
}

namespace {
bool& next_wrapper_is_instrumented() {
    thread_local bool now = false;
    return now;
}
}  // namespace

WrapperAgain::WrapperAgain() { next_wrapper_is_instrumented() = true; }
WrapperAgain::~WrapperAgain() { next_wrapper_is_instrumented() = false; }  // a profile that ends meanwhile leaves it unasked

bool begins_instrumented_call() { return !std::exchange(next_wrapper_is_instrumented(), false) && !inside_instrumented_call(); }

bool& instrumentation_is_silent() {
    thread_local bool quietly = false;
    return quietly;
}

namespace {

struct Quietly {
    Quietly() { instrumentation_is_silent() = true; }
    ~Quietly() { instrumentation_is_silent() = false; }
};

// What a printed line calls an operator's wrapper: add.out is dipu_add_out.
std::string wrapper_name(const OpRecord& record) {
    std::string name = "dipu_" + record.name;
    for (char& letter : name) letter = letter == '.' ? '_' : static_cast<char>(std::tolower(letter));
    return name;
}

// One write for a whole text: lines of several threads do not mix.
void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

std::string described(const at::Tensor& tensor) {
    if (!tensor.defined()) return "undefined";
    std::ostringstream text;
    if (tensor.layout() != at::kStrided) {
        text << "numel:" << tensor.numel() << ", sizes:" << tensor.sizes() << ", " << tensor.options();
        return text.str();
    }
    text << "numel:" << tensor.numel() << ", sizes:" << tensor.sizes() << ", stride:" << tensor.strides() << ", is_view:" << tensor.is_view()
         << ", " << tensor.options() << ", data_ptr:" << tensor.const_data_ptr();
    return text.str();
}

std::string shown(const c10::IValue& value, bool with_values) {
    std::ostringstream text;
    if (value.isTensor()) {
        const at::Tensor& tensor = value.toTensor();
        if (tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
            text << tensor.item();
            return text.str();
        }
        text << described(tensor);
        if (with_values && tensor.defined()) text << "\n" << tensor;
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) text << "\n\t\t" << shown(tensor, with_values);
    } else {
        text << value;
    }
    return text.str();
}

// The tensors of one argument.
std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
    std::vector<at::Tensor> tensors;
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) tensors = value.toTensorVector();
    if (value.isOptionalTensorList())
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
            if (tensor) tensors.push_back(*tensor);
    return tensors;
}

// Copies of a call's arguments on the CPU. Those that share memory with something the operator writes share it here, too:
// x.add_(x), or a list that is given twice.
class Copies {
   public:
    Copies(const OpRecord& record, const torch::jit::Stack& arguments) {
        for (size_t i = 0; i < arguments.size(); ++i)
            for (const at::Tensor& tensor : tensors_in(arguments[i]))
                if (has_plain_memory(tensor)) {
                    Memory& memory = memory_[tensor.storage().unsafeGetStorageImpl()];
                    memory.tensors += 1;
                    memory.written = memory.written || record.written[i];
                }
    }

    // Whether an argument changes because another is written.
    bool changes(const c10::IValue& value) {
        const auto tensors = tensors_in(value);
        return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) { return shared_memory(tensor) != nullptr; });
    }

    torch::jit::Stack of(const torch::jit::Stack& arguments) {
        torch::jit::Stack copies;
        for (const c10::IValue& value : arguments) copies.push_back(of(value));
        return copies;
    }

   private:
    struct Memory {
        int tensors = 0;
        bool written = false;
        at::Tensor copy;  // of all of it
    };

    static bool has_plain_memory(const at::Tensor& tensor) {
        return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_conj() && !tensor.is_neg();
    }

    c10::IValue of(const c10::IValue& value) {
        if (value.isTensor()) return of(value.toTensor());
        if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor& tensor : value.toTensorList()) list.push_back(of(tensor));
            return list;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> list;
            for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
                list.push_back(tensor ? std::optional<at::Tensor>(of(*tensor)) : std::nullopt);
            return list;
        }
        return value;
    }

    at::Tensor of(const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        Memory* shared = shared_memory(tensor);
        if (!shared) return tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
        if (!shared->copy.defined()) {
            const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
            at::Tensor whole = at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1});
            shared->copy = whole.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
        }
        return at::empty({0}, tensor.options().device(at::kCPU))
            .set_(shared->copy.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    }

    // Memory that the operator writes and several of its tensors have; nullptr for any other.
    Memory* shared_memory(const at::Tensor& tensor) {
        const auto found = has_plain_memory(tensor) ? memory_.find(tensor.storage().unsafeGetStorageImpl()) : memory_.end();
        return found != memory_.end() && found->second.written && found->second.tensors > 1 ? &found->second : nullptr;
    }

    std::map<const c10::StorageImpl*, Memory> memory_;
};

struct Tolerance {
    double relative, absolute;
};
Tolerance tolerance_of(at::ScalarType type) {
    switch (type) {
        case at::kHalf: return {1e-2, 1e-3};
        case at::kBFloat16: return {2e-2, 1e-2};
        case at::kDouble:
        case at::kComplexDouble: return {1e-7, 1e-9};
        default: return {1e-4, 1e-5};
    }
}

// "" if both agree, else what differs.
std::string difference(const at::Tensor& expected, const at::Tensor& device) {
    if (expected.defined() != device.defined()) return "one of both is undefined";
    if (!expected.defined()) return "";
    std::ostringstream text;
    if (expected.sizes() != device.sizes() || expected.scalar_type() != device.scalar_type()) {
        text << "shape or dtype differ";
        return text.str();
    }
    const at::Tensor got = device.to(at::kCPU);
    const bool real = at::isFloatingType(got.scalar_type()) || at::isComplexType(got.scalar_type());
    if (!real) return at::equal(expected, got) ? "" : "elements differ";
    const auto [relative, absolute] = tolerance_of(got.scalar_type());
    if (at::allclose(got, expected, relative, absolute, /*equal_nan=*/true)) return "";
    text << "max_diff: " << (got - expected).abs().max().to(at::kDouble).item<double>() << ", rtol: " << relative << ", atol: " << absolute;
    return text.str();
}

std::string verdict(const std::string& wrong) { return wrong.empty() ? "allclose" : "not_allclose (" + wrong + ")"; }

// The CPU's answer. Two operators have another name there.
torch::jit::Stack cpu_results(OpRecord& record, torch::jit::Stack stack) {
    c10::OperatorHandle op = record.op;
    if (record.name == "convolution_overrideable") {
        op = op_record("convolution").op;
    } else if (record.name == "convolution_backward_overrideable") {
        op = op_record("convolution_backward").op;
        stack.insert(stack.begin() + 3, c10::IValue(std::vector<int64_t>{stack[0].toTensor().size(1)}));
    }
    call_on_cpu(op, &stack);
    return stack;
}

bool is_random(const OpRecord& record) { return record.generator >= 0 || record.op.hasTag(at::Tag::nondeterministic_seeded); }

// The same of a tensor or a list of tensors; the first difference of a list with its index.
std::string differences(const c10::IValue& expected, const c10::IValue& device) {
    if (expected.isTensor()) return difference(expected.toTensor(), device.toTensor());
    const auto one = expected.toTensorVector(), other = device.toTensorVector();
    if (one.size() != other.size()) return "lists of different lengths";
    for (size_t i = 0; i < one.size(); ++i)
        if (const auto wrong = difference(one[i], other[i]); !wrong.empty()) return "[" + std::to_string(i) + "]: " + wrong;
    return "";
}

// Results that are no tensors: a truth value or a number.
bool same_value(const c10::IValue& expected, const c10::IValue& got) {
    if (expected.isBool() && got.isBool()) return expected.toBool() == got.toBool();
    if (expected.isInt() && got.isInt()) return expected.toInt() == got.toInt();
    if (!expected.isDouble() || !got.isDouble()) return false;
    return expected.toDouble() == got.toDouble() || (std::isnan(expected.toDouble()) && std::isnan(got.toDouble()));
}

void compare_result(std::ostream& text, const std::string& what, const c10::IValue& expected, const c10::IValue& got) {
    if (!expected.isTensor() && !expected.isTensorList()) {
        text << "autocompare:    " << what << ": " << (same_value(expected, got) ? "equal" : "not_equal") << " (" << expected << " and " << got << ")\n";
        return;
    }
    if (expected.isTensorList()) {
        text << "autocompare:    " << what << ": " << verdict(differences(expected, got)) << "\n";
        return;
    }
    text << "autocompare:    " << what << ":\n\t" << described(expected.toTensor()) << "\n\t" << described(got.toTensor()) << "\n\t"
         << verdict(difference(expected.toTensor(), got.toTensor())) << "\n";
}

std::string comparison(OpRecord& record, const torch::jit::Stack& before, const torch::jit::Stack& arguments, const torch::jit::Stack& results) {
    std::ostringstream text;
    text << "\n" << wrapper_name(record) << "_autocompare\n";
    if (is_random(record)) {
        text << "autocompare:    " << record.name << ": draws random numbers, not compared\n";
        return text.str();
    }
    Copies copies(record, before);
    torch::jit::Stack stack = copies.of(before);
    const torch::jit::Stack written = stack;  // the same tensors: an in-place operator changes them
    const auto expected = cpu_results(record, std::move(stack));
    for (size_t i = 0; i < expected.size() && i < results.size(); ++i)
        compare_result(text, record.name + (expected.size() == 1 ? " out" : " out" + std::to_string(i)), expected[i], results[i]);
    const auto& schema = record.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
        const auto* now = &arguments[i];
        if (!now->isTensor() && !now->isTensorList()) continue;
        const bool changes = record.written[i] || copies.changes(before[i]);
        text << "autocompare:    " << record.name << " " << schema[i].name() << ": " << verdict(differences((changes ? written : before)[i], *now))
             << "\n";
    }
    return text.str();
}

}  // namespace

void print_call(const OpRecord& record, const char* function, int line) {
    print("[" + wrapper_name(record) + (line ? ":" + std::to_string(line) : "") + "]:" + record.name + "  " + function + "\n");
}

InstrumentedCall::InstrumentedCall(OpRecord& record, torch::jit::Stack arguments) : record_(record), arguments_(std::move(arguments)) {
    inside_instrumented_call() = true;
    Quietly quietly;
    try {
        const int level = settings.dump;
        const auto& schema = record_.op.schema().arguments();
        for (size_t i = 0; level >= 2 && i < arguments_.size(); ++i)
            given_ += "\t" + record_.name + ": " + schema[i].name() + ":" + shown(arguments_[i], level >= 3) + "\n";
        compares_ = settings.any_list && (op_flags(record_, form_of(arguments_)) & kCompare);
        if (compares_) on_cpu_ = Copies(record_, arguments_).of(arguments_);
    } catch (const std::exception& error) {
        compares_ = false;
        given_ += "\t" + record_.name + ": the arguments cannot be shown: " + error.what() + "\n";
    }
}

InstrumentedCall::~InstrumentedCall() { inside_instrumented_call() = false; }

void InstrumentedCall::finish(const torch::jit::Stack& results) {
    Quietly quietly;
    try {
        if (settings.dump >= 2) {
            std::string text = given_;
            for (size_t i = 0; i < results.size(); ++i) {
                const std::string name = results.size() == 1 ? "out" : "out" + std::to_string(i);
                text += "\t" + record_.name + ": " + name + ":" + shown(results[i], settings.dump >= 3) + "\n";
            }
            print(text);
        }
        if (compares_) print(comparison(record_, on_cpu_, arguments_, results));
    } catch (const std::exception& error) {
        const auto* failure = dynamic_cast<const c10::Error*>(&error);
        print("autocompare:    " + record_.name + ": not compared: " + (failure ? failure->what_without_backtrace() : error.what()) + "\n");
    }
}

}  // namespace dipu
