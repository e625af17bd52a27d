#pragma once
#include <ATen/EmptyTensor.h>

namespace at::detail {
inline TensorBase empty_cuda(IntArrayRef size, ScalarType dtype, std::optional<Device>, std::optional<MemoryFormat> format) {
    return empty_cpu(size, dtype, /*pin_memory=*/false, format);
}
}  // namespace at::detail
