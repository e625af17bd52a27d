// Norms and activations.
#include <torch/csrc/utils/pybind.h>

#include "arguments.h"
#include "bindings.h"
#include "kernels/norms.h"

namespace dlinfer {
namespace {

at::Tensor rms_norm_of(const at::Tensor& hidden_states, const at::Tensor& weight, double epsilon) {
    const auto rows = hidden_states.contiguous(), factors = weight.contiguous();
    auto result = at::empty_like(rows);
    const auto size = rows.size(-1);
    const auto kind = rows.scalar_type() == at::kFloat ? Kind::f32 : rows.scalar_type() == at::kBFloat16 ? Kind::bf16 : Kind::f16;
    if (size)
        DLINFER_PICK(rms_norm)
    ({rows.const_data_ptr(), factors.const_data_ptr(), result.mutable_data_ptr(), rows.numel() / size, size, kind, static_cast<float>(epsilon)});
    return result;
}

}  // namespace

void bind_layers(pybind11::module_& module) { module.def("rms_norm", &rms_norm_of); }

}  // namespace dlinfer
