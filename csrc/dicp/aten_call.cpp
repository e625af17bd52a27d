#include "aten_call.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "plan.h"

namespace dicp {
namespace {

bool aliases(const c10::FunctionSchema& schema) {
    for (const auto& result : schema.returns())
        if (result.alias_info() && !result.alias_info()->isWrite()) return true;
    return false;
}

/// Whether the tensor made for the last call is the one that this call needs, and nobody else kept it.
bool fits(const at::Tensor& tensor, const char* pointer, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return tensor.defined() && tensor.use_count() == 1 && tensor.const_data_ptr() == pointer && tensor.sizes() == sizes && tensor.strides() == strides;
}

bool has_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
    if (tensor.numel() == 0) return tensor.strides() == strides;
    for (const auto dim : c10::irange(tensor.dim()))
        if (tensor.size(dim) != 1 && tensor.stride(dim) != strides[dim]) return false;
    return true;
}

}  // namespace

AtenCall::AtenCall(const std::string& name, const std::string& overload)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())) {}

std::string AtenCall::name() const { return c10::toString(op_.operator_name()); }

void AtenCall::finish() {
    const auto& wanted = schema();
    TORCH_CHECK(constants.size() == wanted.arguments().size(), name(), " has ", wanted.arguments().size(), " arguments; ", constants.size(), " were given");
    for (const auto& slot : slots)
        TORCH_CHECK(slot.argument >= 0 && static_cast<size_t>(slot.argument) < constants.size(), name(), " has no argument ", slot.argument);
    for (const auto& slot : results)
        TORCH_CHECK(slot.result >= 0 && static_cast<size_t>(slot.result) < wanted.returns().size(), name(), " has no result ", slot.result);
    aliases_ = aliases(wanted);
    const auto served = [](const ArgumentSlot& slot) {
        return slot.dtype == at::kFloat && slot.argument < 3 && slot.position < 0 && slot.rank == (slot.argument == 2 ? 1 : 4);
    };
    if (wanted.name() == "aten::convolution" && wanted.overload_name().empty() && results.size() == 1 && slots.size() >= 2 && slots[0].argument == 0 &&
        slots[1].argument == 1 && std::all_of(slots.begin(), slots.end(), served))
        convolution_ = convolution_settings(constants);
    packed_ = std::make_shared<OncePacked>();
}

bool AtenCall::convolved(Frame& frame, const int64_t* dims) const {
    auto& workspace = *frame.workspace;
    Convolution c{};
    const int64_t* sizes[3] = {};
    const float* data[3] = {};
    for (const auto& slot : slots) {
        data[slot.argument] = reinterpret_cast<const float*>(workspace.pointers[slot.value] + *dims);
        sizes[slot.argument] = dims + 1;
        dims += 1 + 2 * slot.rank;
    }
    c.x = data[0], c.x_sizes = sizes[0], c.x_strides = sizes[0] + 4;
    c.weight = data[1], c.weight_sizes = sizes[1], c.weight_strides = sizes[1] + 4;
    c.bias = data[2], c.out_sizes = dims, c.out_strides = dims + 4;
    if (!serves(c) || (sizes[2] && sizes[2][1] != 1 && sizes[2][0] != 1)) return false;
    const auto& result = results[0];
    at::Tensor out = at::detail::empty_strided_cpu({dims, 4}, {dims + 4, 4}, at::kFloat);
    c.out = static_cast<float*>(out.mutable_data_ptr());
    const auto first = 1 + frame.plan->inputs.size();
    const auto weight = static_cast<size_t>(slots[1].value);
    if (weight >= first && weight < first + frame.plan->constants.size()) {
        std::call_once(packed_->once, [&] { packed_->panels = packed_weight(c, *convolution_); });
        convolve(c, *convolution_, *packed_->panels);
    } else {
        convolve(c, *convolution_, *packed_weight(c, *convolution_));
    }
    workspace.pointers[result.value] = reinterpret_cast<char*>(c.out);
    workspace.tensors[result.value] = std::move(out);
    return true;
}

void AtenCall::run(Frame& frame, std::vector<at::Tensor>& cached, const int64_t* dims) const {
    if (convolution_ && frame.plan->device.is_cpu() && convolved(frame, dims)) return;
    auto& workspace = *frame.workspace;
    torch::jit::Stack stack(constants);
    std::vector<at::Tensor> tensors;
    cached.resize(slots.size());
    int listed = -1;  // the argument whose list is this call's own
    for (const auto i : c10::irange(slots.size())) {
        const auto& slot = slots[i];
        c10::IValue value;
        if (slot.dtype) {
            char* pointer = workspace.pointers[slot.value] + dims[0];
            const at::IntArrayRef sizes(dims + 1, slot.rank), strides(dims + 1 + slot.rank, slot.rank);
            dims += 1 + 2 * slot.rank;
            const bool in_arena = !workspace.tensors[slot.value].defined();
            if (!in_arena || !fits(cached[i], pointer, sizes, strides)) {
                at::Tensor made = tensor_at(workspace, slot.value, pointer, *slot.dtype, sizes, strides);
                if (in_arena) cached[i] = made;
                tensors.push_back(std::move(made));
            } else {
                tensors.push_back(cached[i]);
            }
            value = tensors.back();
        } else {
            value = *dims++;
        }
        if (slot.position < 0) {
            stack[slot.argument] = std::move(value);
        } else {
            if (listed != slot.argument) stack[slot.argument] = stack[slot.argument].toList().copy();
            listed = slot.argument;
            stack[slot.argument].toList().set(slot.position, std::move(value));
        }
    }
    op_.callBoxed(&stack);
    for (const auto& slot : results) {
        auto& result = stack[slot.result];
        at::Tensor tensor = slot.position >= 0 ? result.toTensorVector().at(slot.position) : result.isNone() ? at::Tensor() : result.toTensor();
        set_result(frame, slot, std::move(tensor), tensors, dims);
        dims += 2 * slot.rank;
    }
}

void AtenCall::set_result(Frame& frame, const ResultSlot& slot, at::Tensor result, const std::vector<at::Tensor>& arguments, const int64_t* dims) const {
    const at::IntArrayRef sizes(dims, slot.rank), strides(dims + slot.rank, slot.rank);
    TORCH_CHECK(result.defined() && result.scalar_type() == slot.dtype && result.sizes() == sizes, name(), " gave ",
                result.defined() ? c10::str(result.scalar_type(), result.sizes()) : std::string("nothing"), " where the graph says ", slot.dtype, sizes);
    // Views of results that are returned say where they begin in their storage: in that of a tensor that begins with it.
    bool own = result.layout() == at::kStrided && has_strides(result, strides) && result.storage_offset() == 0;
    if (own && aliases_)
        for (const auto& argument : arguments) own = own && !argument.is_alias_of(result);
    if (!own || result.is_neg() || result.is_conj()) result = at::empty_strided(sizes, strides, result.options().layout(at::kStrided)).copy_(result);
    auto& workspace = *frame.workspace;
    workspace.pointers[slot.value] = static_cast<char*>(result.data_ptr());
    workspace.tensors[slot.value] = std::move(result);
}

}  // namespace dicp
