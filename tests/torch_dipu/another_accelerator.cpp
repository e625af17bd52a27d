// The streams of a `cuda` that is not there: enough for PyTorch's autograd to take fake tensors of it for an accelerator's.
#include <c10/core/impl/FakeGuardImpl.h>

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>)
