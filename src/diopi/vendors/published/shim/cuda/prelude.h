// Included in front of every published source that is compiled for CUDA: headers that it takes for granted, and what torch does not
// have by the name it uses.
#pragma once
#include <ATen/ATen.h>
#include <ATen/WrapDimUtilsMulti.h>

#include <array>
#include <numeric>

namespace at::cuda {
using at::argsort;
}  // namespace at::cuda
