// Included in front of every published source that is compiled for the CPU: torch's own headers come first, as they are; then the
// names by which those sources mean "the accelerator" mean the CPU.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <diopi/diopirt.h>
#ifdef PUBLISHED_FRONTEND
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/torch.h>
#endif

#include <array>
#include <numeric>

// at::DeviceType::CUDA, at::kCUDA and c10::DeviceType::CUDA
#define CUDA CPU
#define kCUDA kCPU
// The CPU needs no start; asking changes nothing.
#define lazyInitCUDA hasCUDA
// A CPU device of torch has no index, and tensors of two are not of one device.
#define diopiGetTensorDeviceIndex(tensor, index) (*(index) = -1, diopiSuccess)
// The sources ask for results on the device of a tensor that they computed. That device is called the CPU here, and never means the host.
#define diopiRequireTensor(ctx, tensor, size, stride, dtype, device) \
    diopiRequireTensor(ctx, tensor, size, stride, dtype, ((void)(device), diopi_device))
