// The same library as a module of a device whose kernels are functions of C (dipu/host_kernel.h): segments run in the stream's order.
#pragma once
#include <c10/core/Device.h>

#include <string>

#include "plan.h"

namespace dicp {

struct DeviceLibrary {
    DeviceLibrary(const std::string& path, c10::Device device);
    ~DeviceLibrary();
    DeviceLibrary(const DeviceLibrary&) = delete;
    DeviceLibrary& operator=(const DeviceLibrary&) = delete;

    void launch(const Frame& frame, int64_t segment) const;

private:
    c10::Device device_;
    void* module_ = nullptr;
    void* kernel_ = nullptr;
};

}  // namespace dicp
