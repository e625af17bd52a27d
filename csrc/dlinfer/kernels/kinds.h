// The floating types of stored numbers that kernels know. All arithmetic is in float.
#pragma once

namespace dlinfer {

enum class Kind { f32, bf16, f16 };

}  // namespace dlinfer
