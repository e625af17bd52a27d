// Copies between host and device, between devices, between layouts and dtypes.
#pragma once
#include <ATen/core/Tensor.h>

#include "../runtime/vendor.h"

namespace dipu {

// `source` has the sizes of `destination`.
DIPU_API void copy_tensor(const at::Tensor& destination, const at::Tensor& source, bool non_blocking);

}  // namespace dipu
