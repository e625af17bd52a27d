// A stream of the vendor table: CUDA's own, as the runtime and as torch's kernels know it.
#pragma once
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <string>

namespace dipu_vendor {

struct Stream {
    cudaStream_t raw;
    int device;
    c10::cuda::CUDAStream torch;
    std::mutex mutex;
    std::string failure;  // of a host function that ran in the stream's order, until it is reported

    Stream(cudaStream_t stream, int index)
        : raw(stream), device(index), torch(c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(index))) {}
    // The first failure since the last call, or "".
    std::string take_failure() {
        std::lock_guard<std::mutex> lock(mutex);
        return std::exchange(failure, {});
    }
};

}  // namespace dipu_vendor
