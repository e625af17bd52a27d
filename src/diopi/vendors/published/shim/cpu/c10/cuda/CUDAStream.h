// The CPU has one stream, which is always the current one.
#pragma once
#include <cuda_runtime_api.h>

namespace c10::cuda {
struct CUDAStream {};
inline CUDAStream getStreamFromExternal(cudaStream_t, int) { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}
}  // namespace c10::cuda
