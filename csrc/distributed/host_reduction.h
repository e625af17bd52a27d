// What the host's network cannot reduce by itself.
#pragma once
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace dipu {

// A reduction as the network does it, and what is to be done before and after.
class HostReduction {
   public:
    // Raises if tensors of this dtype cannot be reduced so.
    HostReduction(const c10d::ReduceOp& wanted, c10::ScalarType dtype, int ranks);

    c10d::ReduceOp::RedOpType operation() const { return operation_; }
    // The contribution of this rank: `own` itself, or a tensor that takes its place.
    at::Tensor contribution(const at::Tensor& own) const;
    // What the network made of it, in `result`.
    void finish(const at::Tensor& reduced, const at::Tensor& result) const;
    // Rows of contributions, one of each rank, to one row; half precision is summed in float32 and rounded once.
    at::Tensor reduce_rows(const at::Tensor& rows) const;

   private:
    c10d::ReduceOp::RedOpType operation_;
    c10::ScalarType sent_as_;
    int ranks_;
    bool average_ = false;
    at::Tensor factor_;
};

}  // namespace dipu
