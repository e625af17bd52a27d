// CPU tensors over device memory, and back: how CPU kernels run on a chip whose memory the host can reach.
#pragma once
#include <ATen/core/Tensor.h>

#include "../runtime/allocator.h"

namespace dipu {

// The address of device memory for kernels of the alias' device type; NULL stays NULL, and if the vendor gives none its message is raised.
DIPU_API void* host_alias(const void* pointer);
// The dispatch key of those kernels.
DIPU_API c10::DispatchKeySet alias_keys();

// A CPU tensor over the same bytes. Tensors of one storage give tensors of one storage, so that overlap is still seen.
DIPU_API at::Tensor cpu_alias(const at::Tensor& tensor);

// A fresh CPU tensor, owned by nobody else, becomes a device tensor without a copy.
DIPU_API at::Tensor adopt_tensor(at::Tensor tensor, int device);
DIPU_API bool adoptable(const at::Tensor& tensor);

// A device tensor over (a part of) the storage of another one.
DIPU_API at::Tensor device_view(const c10::Storage& storage, const at::Tensor& geometry, int64_t storage_offset);

inline bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

}  // namespace dipu
