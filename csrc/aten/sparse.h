// Sparse tensors of the device: their parts are device tensors; what is computed with them runs on the CPU.
#pragma once
#include <ATen/core/Tensor.h>

#include "../runtime/vendor.h"

namespace dipu {

DIPU_API at::Tensor make_coo(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef size, bool coalesced);
DIPU_API at::Tensor make_compressed(const at::Tensor& compressed, const at::Tensor& plain, const at::Tensor& values, at::IntArrayRef size,
                                    at::Layout layout);

}  // namespace dipu
