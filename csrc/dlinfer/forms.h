// Which forms of a call the kernels take, and who serves the others: the operator's reference.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include "kernels/kinds.h"

namespace dlinfer {

/// Whether kernels read and write this dtype: float32, bfloat16 or float16.
inline bool has_kind(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf; }

/// Raises for a dtype that has none: memory is never read as something else.
inline Kind kind_of(at::ScalarType type) {
    TORCH_CHECK(has_kind(type), "dlinfer's kernels take float32, bfloat16 and float16, got ", type);
    return type == at::kFloat ? Kind::f32 : type == at::kBFloat16 ? Kind::bf16 : Kind::f16;
}

/// The answer of the reference, for forms that no kernel is written for (float64, 8-bit floats). Takes the arguments of the
/// operator's schema. May be called without the GIL.
template <typename Result, typename... Arguments>
Result reference(const char* name, const Arguments&... arguments) {
    pybind11::gil_scoped_acquire held;
    const auto kernels = pybind11::module_::import("dlinfer.reference").attr("KERNELS");
    return kernels[name](arguments...).template cast<Result>();
}

}  // namespace dlinfer
