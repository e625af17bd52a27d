// Device memory, and one pool of it: torch's CUDA kernels take their temporaries from the framework's allocator, so that no second cache keeps memory
// and all of it is counted in one place.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dipu/torch_dipu.h>
#include <dlfcn.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <memory>
#include <mutex>

#include "chip.h"
#include "entries.h"

namespace dipu_vendor {

int allocate(int device, size_t bytes, void** pointer) {
    return on_device(device, [&] { return cudaMalloc(pointer, bytes ? bytes : 1); });
}

int free_memory(int device, void* pointer) {
    return on_device(device, [&] { return cudaFree(pointer); });
}

int memory_info(int device, size_t* free_bytes, size_t* total_bytes) {
    return on_device(device, [&] { return cudaMemGetInfo(free_bytes, total_bytes); });
}

int allocate_pinned(size_t bytes, void** pointer) { return status_of(cudaHostAlloc(pointer, bytes ? bytes : 1, cudaHostAllocPortable)); }
int free_pinned(void* pointer) { return status_of(cudaFreeHost(pointer)); }

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

// The framework's allocator, as libtorch_dipu.so offers it; nullptr without that library.
struct FrameworkPool {
    decltype(&dipuTorchAllocate) allocate;
    decltype(&dipuTorchFree) release;
    decltype(&dipuTorchLastError) last_error;

    static const FrameworkPool* find() {
        void* library = dlopen("libtorch_dipu.so", RTLD_LAZY | RTLD_NOLOAD);
        if (!library) return nullptr;
        static const FrameworkPool pool{reinterpret_cast<decltype(&dipuTorchAllocate)>(dlsym(library, "dipuTorchAllocate")),
                                        reinterpret_cast<decltype(&dipuTorchFree)>(dlsym(library, "dipuTorchFree")),
                                        reinterpret_cast<decltype(&dipuTorchLastError)>(dlsym(library, "dipuTorchLastError"))};
        return pool.allocate && pool.release && pool.last_error ? &pool : nullptr;
    }
};

// In an operator's call memory is the framework's, which knows the stream; what torch.cuda itself asks for stays with torch's allocator.
class SharedAllocator final : public CUDAPluggableAllocator {
   public:
    SharedAllocator(const FrameworkPool& pool, caching::CUDAAllocator& own)
        : CUDAPluggableAllocator([&own](size_t bytes, int, cudaStream_t stream) { return own.raw_alloc_with_stream(bytes, stream); },
                                 [&own](void* pointer, size_t, int, cudaStream_t) { own.raw_delete(pointer); }),
          pool_(pool), own_(own) {}

    c10::DataPtr allocate(size_t bytes) override {
        if (!CallScope::active()) return own_.allocate(bytes);
        int device = 0;
        C10_CUDA_CHECK(cudaGetDevice(&device));
        const c10::Device where(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
        if (bytes == 0) return {nullptr, where};
        void *pointer = nullptr, *block = nullptr;
        const int status = pool_.allocate(device, bytes, &pointer, &block);
        TORCH_CHECK_WITH(OutOfMemoryError, status != DIPU_ERROR_MEMORY, pool_.last_error());
        TORCH_CHECK(status == DIPU_SUCCESS, pool_.last_error());
        return {pointer, block, pool_.release, where};
    }

    void init(int device_count) override {
        own_.init(device_count);
        CUDAPluggableAllocator::init(device_count);
    }
    void emptyCache(c10::cuda::MempoolId_t pool) override { own_.emptyCache(pool); }
    void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
        if (pointer.get_deleter() != pool_.release) own_.recordStream(pointer, stream);
    }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override { return own_.getDeviceStats(device); }
    void resetAccumulatedStats(c10::DeviceIndex device) override { own_.resetAccumulatedStats(device); }
    void resetPeakStats(c10::DeviceIndex device) override { own_.resetPeakStats(device); }
    std::string name() override { return "dipu"; }

   private:
    const FrameworkPool& pool_;
    caching::CUDAAllocator& own_;
};

}  // namespace

void share_memory_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        caching::CUDAAllocator* own = caching::get();
        const FrameworkPool* pool = FrameworkPool::find();
        // torch.cuda has memory already: it keeps its own cache
        if (pool && !own->initialized())
            torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(std::make_shared<SharedAllocator>(*pool, *own));
        at::globalContext().lazyInitDevice(c10::kCUDA);
    });
}

}  // namespace dipu_vendor
