#include "aten_call.h"

#include <c10/util/irange.h>

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
}

void AtenCall::run(Frame& frame, std::vector<at::Tensor>& cached, const int64_t* dims) const {
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
    bool own = result.layout() == at::kStrided && has_strides(result, strides);
    if (own && aliases_)
        for (const auto& argument : arguments) own = own && !argument.is_alias_of(result);
    if (!own || result.is_neg() || result.is_conj()) result = at::empty_strided(sizes, strides, result.options().layout(at::kStrided)).copy_(result);
    auto& workspace = *frame.workspace;
    workspace.pointers[slot.value] = static_cast<char*>(result.data_ptr());
    workspace.tensors[slot.value] = std::move(result);
}

}  // namespace dicp
