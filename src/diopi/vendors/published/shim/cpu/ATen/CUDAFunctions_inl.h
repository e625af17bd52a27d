// at::cuda::name calls the accelerator's kernel without dispatch. The CPU has such names for its own kernels; what it has none of by
// that name goes by dispatch.
#pragma once
#include <ATen/CPUFunctions.h>
#include <ATen/WrapDimUtilsMulti.h>

namespace at::cuda {
using namespace at::cpu;
using at::_foreach_add;
using at::_foreach_add_;
using at::_foreach_mul;
using at::_foreach_mul_;
using at::_foreach_norm;
using at::argsort;
using at::batch_norm_backward_elemt;
using at::batch_norm_elemt_out;
using at::batch_norm_gather_stats_with_counts;
using at::batch_norm_stats;
using at::convolution_backward;
using at::cudnn_convolution;

// Dropout in one kernel, which only accelerators have: `keep` is the share of elements that stay.
inline std::tuple<Tensor, Tensor> _fused_dropout(const Tensor& self, double keep, std::optional<Generator> generator) {
    Tensor mask = at::empty_like(self, self.options().dtype(kByte)).bernoulli_(keep, generator);
    return {self.mul(mask).div_(keep), mask};
}
}  // namespace at::cuda
