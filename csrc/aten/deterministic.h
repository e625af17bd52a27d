// torch.use_deterministic_algorithms: what torch.cuda refuses or warns of, this device does.
#pragma once
#include <ATen/core/stack.h>

#include "record.h"

namespace dipu {

// Whether calls of the operator may be refused.
bool may_alert(const c10::OperatorName& name);
// Refuses (or warns of) a call, if torch.cuda would. The arguments are the last of the stack.
void alert_if_nondeterministic(const OpRecord& record, const torch::jit::Stack& stack);

}  // namespace dipu
