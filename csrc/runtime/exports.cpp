// The functions of include/dipu/torch_dipu.h.
#include <c10/util/Exception.h>
#include <dipu/torch_dipu.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "allocator.h"
#include "device.h"

namespace dipu {
namespace {

thread_local std::string problem;

// No C++ exception may pass through a C library.
template <class Body>
int guarded(Body&& body) noexcept {
    try {
        body();
        return DIPU_SUCCESS;
    } catch (const c10::OutOfMemoryError& error) {
        problem = error.what_without_backtrace();
        return DIPU_ERROR_MEMORY;
    } catch (const c10::Error& error) {
        problem = error.what_without_backtrace();
    } catch (const std::exception& error) {
        problem = error.what();
    }
    return DIPU_ERROR;
}

}  // namespace
}  // namespace dipu

extern "C" {

DIPU_API const dipuVendorTable* dipuTorchVendor(void) {
    const dipuVendorTable* table = nullptr;
    dipu::guarded([&] { table = dipu::vendor().table(); });
    return table;
}

DIPU_API int dipuTorchCurrentDevice(int* device) {
    return dipu::guarded([&] {
        dipu::check_device(0);
        *device = dipu::current_device();
    });
}

DIPU_API int dipuTorchCurrentStream(int device, void** stream) {
    return dipu::guarded([&] {
        const int index = device < 0 ? dipu::current_device() : device;
        dipu::check_device(index);
        *stream = dipu::current_stream_handle(index);
    });
}

DIPU_API int dipuTorchLaunch(int device, void* function, const dipuKernelLaunch* launch) {
    return dipu::guarded([&] {
        TORCH_CHECK(function && launch, "dipu: a kernel and the description of its launch are needed");
        const auto& vendor = dipu::vendor();
        TORCH_CHECK_NOT_IMPLEMENTED(vendor->kernel_launch, "dipu: the vendor ", vendor->name, " cannot launch kernels that others compiled");
        const int index = device < 0 ? dipu::current_device() : device;
        dipu::check_device(index);
        dipuKernelLaunch on_stream{};
        std::memcpy(&on_stream, launch, std::min(launch->size, sizeof(on_stream)));
        on_stream.size = sizeof(on_stream);
        on_stream.stream = dipu::current_stream_handle(index);
        dipu::OnDevice here(index);
        const std::string doing = std::string("launching the kernel ") + (on_stream.name ? on_stream.name : "(no name)");
        dipu::check(vendor->kernel_launch(function, &on_stream), doing.c_str());
    });
}

DIPU_API int dipuTorchAllocate(int device, size_t bytes, void** pointer, void** block) {
    return dipu::guarded([&] {
        const int index = device < 0 ? dipu::current_device() : device;
        dipu::check_device(index);
        c10::DataPtr made = dipu::allocate_on(index, bytes);
        *pointer = made.get();
        *block = made.release_context();
    });
}

DIPU_API void dipuTorchFree(void* block) { dipu::free_device_memory(block); }

DIPU_API const char* dipuTorchLastError(void) { return dipu::problem.c_str(); }

}  // extern "C"
