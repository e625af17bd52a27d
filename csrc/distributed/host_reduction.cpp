#include "host_reduction.h"

#include <ATen/ATen.h>

namespace dipu {
namespace {

using Kind = c10d::ReduceOp;

const char* name(Kind::RedOpType kind) {
    static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
    return kind < Kind::UNUSED ? kNames[kind] : "UNUSED";
}

// gloo adds up these as they are; others travel in a wider dtype.
c10::ScalarType network_dtype(c10::ScalarType dtype) {
    switch (dtype) {
        case c10::kFloat: case c10::kDouble: case c10::kHalf: case c10::kBFloat16:
        case c10::kChar: case c10::kByte: case c10::kInt: case c10::kLong:
            return dtype;
        case c10::kBool: return c10::kByte;
        case c10::kShort: case c10::kUInt16: return c10::kInt;
        case c10::kUInt32: return c10::kLong;
        default: return c10::isFloat8Type(dtype) ? c10::kFloat : c10::ScalarType::Undefined;
    }
}

// Numbers that are true or false add up to "any of them" and multiply to "all of them".
Kind::RedOpType of_booleans(Kind::RedOpType kind) {
    switch (kind) {
        case Kind::SUM: case Kind::MAX: case Kind::BOR: return Kind::MAX;
        case Kind::PRODUCT: case Kind::MIN: case Kind::BAND: return Kind::MIN;
        case Kind::BXOR: return Kind::BXOR;
        default: return Kind::UNUSED;
    }
}

at::Tensor factor_of(const Kind& wanted) {
    const auto* given = static_cast<const c10d::NCCLPreMulSumSupplement*>(wanted.supplement_.get());
    TORCH_CHECK_VALUE(given, "dicl: PREMUL_SUM without a factor; make it with torch.distributed._make_nccl_premul_sum(factor)");
    return given->tensor_factor.defined() ? given->tensor_factor.cpu() : at::scalar_tensor(given->double_factor, at::kDouble);
}

}  // namespace

HostReduction::HostReduction(const Kind& wanted, c10::ScalarType dtype, int ranks)
    : operation_(wanted.op_), sent_as_(network_dtype(dtype)), ranks_(ranks) {
    TORCH_CHECK_TYPE(sent_as_ != c10::ScalarType::Undefined, "dicl: tensors of ", dtype, " cannot be reduced (", name(operation_),
                     "); convert them to another dtype, or view complex numbers as real ones");
    if (dtype == c10::kBool) {
        operation_ = of_booleans(wanted.op_);
        TORCH_CHECK_TYPE(operation_ != Kind::UNUSED, "dicl: tensors of ", dtype, " have no ", name(wanted.op_), "; convert them to a number");
    }
    const bool bitwise = operation_ == Kind::BAND || operation_ == Kind::BOR || operation_ == Kind::BXOR;
    TORCH_CHECK_TYPE(!bitwise || !c10::isFloatingType(dtype), "dicl: ", name(operation_), " needs integers, not ", dtype);
    if (operation_ == Kind::AVG) average_ = true;
    if (operation_ == Kind::PREMUL_SUM) factor_ = factor_of(wanted);
    if (average_ || factor_.defined()) operation_ = Kind::SUM;
}

at::Tensor HostReduction::contribution(const at::Tensor& own) const {
    if (factor_.defined()) return (own * factor_.to(own.scalar_type()).reshape({})).to(sent_as_);
    if (own.scalar_type() == sent_as_) return own;
    return own.scalar_type() == c10::kBool ? own.view(sent_as_) : own.to(sent_as_);
}

void HostReduction::finish(const at::Tensor& reduced, const at::Tensor& result) const {
    if (average_) {
        if (c10::isIntegralType(reduced.scalar_type(), true))
            reduced.div_(ranks_, "trunc");
        else
            reduced.div_(ranks_);
    }
    if (reduced.data_ptr() != result.data_ptr()) result.copy_(reduced);
}

at::Tensor HostReduction::reduce_rows(const at::Tensor& rows) const {
    switch (operation_) {
        case Kind::SUM: return rows.sum(0, false, rows.scalar_type());
        case Kind::PRODUCT: return rows.prod(0, false, rows.scalar_type());
        case Kind::MIN: return rows.amin(0);
        case Kind::MAX: return rows.amax(0);
        default: break;
    }
    at::Tensor result = rows[0].clone();
    for (int64_t row = 1; row < rows.size(0); ++row) {
        if (operation_ == Kind::BAND) result.bitwise_and_(rows[row]);
        if (operation_ == Kind::BOR) result.bitwise_or_(rows[row]);
        if (operation_ == Kind::BXOR) result.bitwise_xor_(rows[row]);
    }
    return result;
}

}  // namespace dipu
