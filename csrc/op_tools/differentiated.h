// Calls under torch.func.grad, vjp and jvp, which hand a call on without dispatching it anew: what their tensors hold is what the
// kernel gets, and the call that the program made is the only one to be seen.
#pragma once

#include <vector>

#include "python_call.h"
#include "thread.h"

namespace op_tools {

constexpr DispatchKeySet functorch_modes({DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode});

// Whether the transforms under way on this thread are these alone.
bool is_differentiated();

std::vector<IValue> values_held_by(Values values);

}  // namespace op_tools
