#include "call.h"

#include <algorithm>
#include <chrono>
#include <sstream>

namespace adaptor {
namespace {

uint64_t now() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

// More tensors than any list has; a larger number is a mistake of the caller.
constexpr int64_t kMostTensors = 1 << 20;

std::string argument_name(const Shim& shim, int position) {
    std::istringstream names(shim.arguments);
    std::string name;
    for (int i = 0; i <= position; ++i) names >> name;
    return name;
}

// Two handles may describe one tensor.
bool same_tensor(const Tensor& a, const Tensor& b) {
    return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape && a.stride == b.stride;
}

}  // namespace

Call::Call(int number, diopiContextHandle_t ctx) : number_(number), op_(operator_at(number)), ctx_(ctx) { op_.cost.calls += 1; }

const Rule* Call::rule(int position) const {
    const bool known = position < static_cast<int>(op_.rules.size()) && op_.rules[position].demands();
    return known ? &op_.rules[position] : nullptr;
}

void Call::fail(int position, const std::string& problem) {
    failed_ = true;
    op_.cost.errors += 1;
    set_error(std::string(shims[number_].name) + ": " + argument_name(shims[number_], position) + ": " + problem);
}

diopiConstTensorHandle_t Call::replace(int position, diopiConstTensorHandle_t handle) {
    const Rule* asked = rule(position);
    if (!handle || !asked || failed_) return handle;
    const bool read = asked->role != Role::out, written = asked->role != Role::in;
    Tensor given, made;
    bool sparse = false;
    if (!describe(handle, given, sparse)) {
        if (!sparse) fail(position, "this is no tensor that the runtime functions of DIOPI know");
        return handle;
    }
    const int dtype = asked->dtype[given.dtype] < 0 ? given.dtype : asked->dtype[given.dtype];
    const bool another = dtype != given.dtype;
    const Numbers stride = wanted_strides(*asked, given, another);
    if (!another && stride == given.stride) return handle;
    for (const Pending& earlier : inputs_)  // x * x is converted once
        if (!written && same_tensor(earlier.original, given) && earlier.replaced.dtype == dtype && earlier.replaced.stride == stride)
            return earlier.replaced.handle;
    std::string problem;
    if (!require(ctx_, given.shape, stride, dtype, given.device, made, problem) ||
        (read && !convert(ctx_, given, made, Purpose::argument, op_.cost, problem))) {
        fail(position, problem);
        return handle;
    }
    (written ? results_ : inputs_).push_back({position, given, made});
    return made.handle;
}

template <typename Handle>
void Call::replace_all(int position, Handle*& handles, const Count* next, const Count* end) {
    if (!handles || !rule(position) || failed_) return;
    next = std::find_if(next, end, [](const Count& count) { return count.present; });
    const int64_t count = next == end ? 0 : next->value;
    if (count <= 0) return;
    if (count > kMostTensors) return fail(position, "a list of " + std::to_string(count) + " tensors");
    lists_.emplace_back();
    for (int64_t i = 0; i < count; ++i) lists_.back().push_back(replace(position, handles[i]));
    handles = const_cast<Handle*>(lists_.back().data());
}

void Call::argument(int position, diopiConstTensorHandle_t& handle, const Count*, const Count*) { handle = replace(position, handle); }

void Call::argument(int position, diopiTensorHandle_t& handle, const Count*, const Count*) {
    handle = const_cast<diopiTensorHandle_t>(replace(position, handle));
}

void Call::argument(int position, diopiConstTensorHandle_t*& handles, const Count* next, const Count* end) {
    replace_all(position, handles, next, end);
}

void Call::argument(int position, diopiTensorHandle_t*& handles, const Count* next, const Count* end) {
    const Rule* asked = rule(position);
    if (!asked || asked->role != Role::made) return replace_all(position, handles, next, end);
    if (handles) made_.push_back({position, handles, asked->like});
}

void Call::number(int position, const diopiScalar_t* number) {
    std::string problem;
    if (!number || failed_) return;
    for (const auto* list : {&inputs_, &results_})
        for (const Pending& tensor : *list) {
            const bool narrowed = !always_fits(tensor.original.dtype, tensor.replaced.dtype);
            if (narrowed && !number_fits(*number, tensor.replaced.dtype, problem)) return fail(position, problem);
        }
}

bool Call::ready() {
    if (failed_) return false;
    set_error("");
    started_ = now();
    return true;
}

bool Call::put_back(const Pending& pending) {
    std::string problem;
    if (convert(ctx_, pending.replaced, pending.original, Purpose::result, op_.cost, problem)) return true;
    fail(pending.position, "the result cannot be given back as " + std::string(dtype_name(pending.original.dtype)) + ": " + problem);
    return false;
}

// What the caller expects instead of a made tensor of this dtype.
int Call::expected_dtype(const Made& made, int dtype) const {
    if (made.like == Rule::kCounts) return rule(made.position)->dtype[diopi_dtype_int64] == dtype ? diopi_dtype_int64 : dtype;
    for (const Pending& input : inputs_)
        if (input.position == made.like && input.replaced.dtype == dtype) return input.original.dtype;
    return dtype;
}

// The library made a tensor of the dtype it knows; the caller expects the one that the rule replaces.
bool Call::cast_back(const Made& made) {
    Tensor tensor, original;
    bool sparse = false;
    if (!*made.handle || !describe(*made.handle, tensor, sparse)) return true;
    const int dtype = expected_dtype(made, tensor.dtype);
    if (dtype == tensor.dtype) return true;
    std::string problem;
    if (!require(ctx_, tensor.shape, contiguous_strides(tensor.shape), dtype, tensor.device, original, problem) ||
        !convert(ctx_, tensor, original, Purpose::result, op_.cost, problem)) {
        fail(made.position, problem);
        return false;
    }
    *made.handle = const_cast<diopiTensorHandle_t>(original.handle);
    return true;
}

diopiError_t Call::finish(diopiError_t status) {
    op_.cost.call_nanoseconds += now() - started_;
    if (status != diopiSuccess) return status;
    for (const Pending& pending : results_)
        if (!put_back(pending)) return diopiErrorOccurred;
    for (const Made& made : made_)
        if (!cast_back(made)) return diopiErrorOccurred;
    return diopiSuccess;
}

}  // namespace adaptor
