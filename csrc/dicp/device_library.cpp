#include "device_library.h"

#include <dipu/host_kernel.h>
#include <dipu/torch_dipu.h>
#include <dlfcn.h>

#include <cstdio>
#include <vector>

#include "run.h"

namespace dicp {
namespace {

/// What torch_dipu offers to other libraries of the process. It is linked to nothing here: a graph of its tensors proves that it is there.
struct Device {
    Device() {
        void* library = dlopen("libtorch_dipu.so", RTLD_NOW | RTLD_NOLOAD);
        TORCH_CHECK(library, "the graph is on a device that queues compiled code only by way of torch_dipu, which is not loaded");
        vendor = reinterpret_cast<decltype(vendor)>(dlsym(library, "dipuTorchVendor"));
        launch = reinterpret_cast<decltype(launch)>(dlsym(library, "dipuTorchLaunch"));
        last_error = reinterpret_cast<decltype(last_error)>(dlsym(library, "dipuTorchLastError"));
        TORCH_CHECK(vendor && launch && last_error, "libtorch_dipu.so is of another version: it does not launch kernels of others");
    }
    decltype(&dipuTorchVendor) vendor;
    decltype(&dipuTorchLaunch) launch;
    decltype(&dipuTorchLastError) last_error;
};

const Device& torch_dipu() {
    static const Device found;
    return found;
}

const dipuVendorTable& vendor_with_kernels() {
    const auto* vendor = torch_dipu().vendor();
    TORCH_CHECK(vendor, "no vendor of the device: ", torch_dipu().last_error());
    TORCH_CHECK(vendor->module_load && vendor->module_unload && vendor->module_function && vendor->kernel_launch, "the vendor ", vendor->name,
                " loads no kernels that others compiled");
    return *vendor;
}

enum Arguments : uint32_t { kRunSegment, kSegment, kValueCount, kValues, kSizes };

/// What `dicp_kernel` of the library calls: on the stream, the arguments are copies.
int run_segment(const dipuHostKernelCall* call, SegmentFunction segment) {
    Frame frame{nullptr, nullptr, nullptr};
    try {
        const auto count = DIPU_ARGUMENT(call, kValueCount, int64_t);
        auto* const* values = static_cast<char* const*>(call->arguments[kValues]);
        std::vector<char*> pointers(count);
        for (int64_t i = 0; i < count; ++i) pointers[i] = values[i] ? static_cast<char*>(call->host_alias(values[i])) : nullptr;
        const auto* sizes = static_cast<const int64_t*>(call->arguments[kSizes]);
        segment(DIPU_ARGUMENT(call, kSegment, int64_t), pointers.data(), sizes, segment_services(), &frame);
        if (!frame.error) return 0;
        std::rethrow_exception(frame.error);
    } catch (const c10::IndexError& error) {
        std::snprintf(call->error, call->error_size, "IndexError: %s", error.what_without_backtrace());
    } catch (const std::exception& error) {
        std::snprintf(call->error, call->error_size, "%s", error.what());
    }
    return 1;
}

}  // namespace

DeviceLibrary::DeviceLibrary(const std::string& path, c10::Device device) : device_(device) {
    const auto& vendor = vendor_with_kernels();
    const auto check = [&](int status) { TORCH_CHECK(status == DIPU_SUCCESS, path, ": the vendor ", vendor.name, ": ", vendor.last_error()); };
    check(vendor.module_load(device.index(), path.c_str(), nullptr, 0, &module_));
    check(vendor.module_function(module_, "dicp_kernel", &kernel_));
}

DeviceLibrary::~DeviceLibrary() {
    if (module_) vendor_with_kernels().module_unload(module_);
}

void DeviceLibrary::launch(const Frame& frame, int64_t segment) const {
    auto* function = &run_segment;
    const auto& pointers = frame.workspace->pointers;
    const auto& sizes = frame.workspace->sizes;
    auto count = static_cast<int64_t>(pointers.size());
    int64_t none = 0;
    void* arguments[] = {&function, &segment, &count, const_cast<char**>(pointers.data()), sizes.empty() ? &none : const_cast<int64_t*>(sizes.data())};
    const size_t bytes[] = {sizeof(function), sizeof(segment), sizeof(count), sizeof(char*) * pointers.size(), sizeof(int64_t) * std::max<size_t>(sizes.size(), 1)};
    const dipuKernelLaunch description{sizeof(dipuKernelLaunch), nullptr, "dicp_segment", {1, 1, 1}, {1, 1, 1}, 0, std::size(bytes), arguments, bytes};
    TORCH_CHECK(torch_dipu().launch(device_.index(), kernel_, &description) == 0, "a compiled segment: ", torch_dipu().last_error());
}

}  // namespace dicp
