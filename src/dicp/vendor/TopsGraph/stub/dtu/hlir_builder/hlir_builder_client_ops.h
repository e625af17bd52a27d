// Written by declaration.py from the table of operators: do not edit.
#ifndef DICP_STUB_HLIR_BUILDER_CLIENT_OPS_H
#define DICP_STUB_HLIR_BUILDER_CLIENT_OPS_H

#include "dtu/hlir_builder/hlir_builder.h"

namespace builder {

Op Const(const std::shared_ptr<Builder>& builder, const void* data, const Type& type);
Op Abs(const Op& p0);
Op Neg(const Op& p0);
Op Exp(const Op& p0);
Op Log(const Op& p0);
Op Sqrt(const Op& p0);
Op Rsqrt(const Op& p0);
Op Reciprocal(const Op& p0);
Op Sin(const Op& p0);
Op Cos(const Op& p0);
Op Tanh(const Op& p0);
Op Sigmoid(const Op& p0);
Op Relu(const Op& p0);
Op Erf(const Op& p0);
Op Floor(const Op& p0);
Op Sign(const Op& p0);
Op Square(const Op& p0);
Op Swish(const Op& p0);
Op HardSwish(const Op& p0);
Op Atan(const Op& p0);
Op Not(const Op& p0);
Op Add(const Op& p0, const Op& p1);
Op Sub(const Op& p0, const Op& p1);
Op Mul(const Op& p0, const Op& p1);
Op Div(const Op& p0, const Op& p1);
Op Pow(const Op& p0, const Op& p1);
Op Max(const Op& p0, const Op& p1);
Op Min(const Op& p0, const Op& p1);
Op And(const Op& p0, const Op& p1);
Op Or(const Op& p0, const Op& p1);
Op Equal(const Op& p0, const Op& p1);
Op NotEqual(const Op& p0, const Op& p1);
Op Less(const Op& p0, const Op& p1);
Op LessEqual(const Op& p0, const Op& p1);
Op Greater(const Op& p0, const Op& p1);
Op GreaterEqual(const Op& p0, const Op& p1);
Op Compare(const Op& p0, const Op& p1, const char* p2);
Op IsFinite(const Op& p0);
Op Select(const Op& p0, const Op& p1, const Op& p2);
Op Clamp(const Op& p0, const Op& p1, const Op& p2);
Op Gelu(const Op& p0, bool p1);
Op GeluGrad(const Op& p0, const Op& p1, bool p2);
Op ReluGrad(const Op& p0, const Op& p1);
Op LeakyRelu(const Op& p0, double p1);
Op HardSwishGrad(const Op& p0, const Op& p1, double p2, double p3, double p4);
Op Softmax(const Op& p0, int64_t p1, bool p2, bool p3, double p4);
Op Convert(const Op& p0, const Type& p1);
Op Reshape(const Op& p0, const Type& p1);
Op BroadcastInDim(const Op& p0, const std::vector<int64_t>& p1, const Type& p2);
Op Transpose(const Op& p0, const std::vector<int64_t>& p1);
Op Reverse(const Op& p0, const std::vector<int64_t>& p1, const Type& p2);
Op Slice(const Op& p0, const std::vector<int64_t>& p1, const std::vector<int64_t>& p2, const std::vector<int64_t>& p3);
Op Concatenate(const std::vector<Op>& p0, int64_t p1);
Op Pad(const Op& p0, const Op& p1, int64_t p2, const std::vector<int64_t>& p3, const std::vector<int64_t>& p4, const std::vector<int64_t>& p5);
Op ZerosLike(const Op& p0);
Op OnesLike(const Op& p0);
Op ReduceSum(const Op& p0, bool p1, const std::vector<int64_t>& p2);
Op ReduceMean(const Op& p0, bool p1, const std::vector<int64_t>& p2);
Op ReduceMax(const Op& p0, bool p1, const std::vector<int64_t>& p2);
Op ReduceMin(const Op& p0, bool p1, const std::vector<int64_t>& p2);
Op ReduceProd(const Op& p0, bool p1, const std::vector<int64_t>& p2);
Op ArgMax(const Op& p0, int64_t p1, bool p2);
Op ArgMin(const Op& p0, int64_t p1, bool p2);
Op CumSum(const Op& p0, const Op& p1, bool p2, bool p3);
Op TopK(const Op& p0, const Op& p1, int64_t p2, bool p3, bool p4);
Op Dot(const Op& p0, const Op& p1);
Op DotGeneral(const Op& p0, const Op& p1, const DotDimensionNumbers& p2);
Op Conv(const Op& p0, const Op& p1, const ConvDimensionNumbers& p2, const std::vector<int64_t>& p3, const std::vector<std::vector<int64_t>>& p4, const std::vector<int64_t>& p5, const std::vector<int64_t>& p6, const std::vector<bool>& p7, const char* p8, int64_t p9, int64_t p10, const std::vector<const char*>& p11);
Op Conv2D(const std::vector<Op>& p0, int64_t p1, const char* p2, const char* p3, const std::vector<int64_t>& p4, const std::vector<int64_t>& p5, const std::vector<int64_t>& p6);
Op MaxPool2D(const Op& p0, const std::vector<int64_t>& p1, bool p2, bool p3, const char* p4, const char* p5, const std::vector<int64_t>& p6, const std::vector<int64_t>& p7, const std::vector<int64_t>& p8);
Op AveragePool(const Op& p0, const std::vector<int64_t>& p1, const std::vector<int64_t>& p2, bool p3, bool p4, const std::vector<int64_t>& p5, const std::vector<int64_t>& p6, const char* p7);
Op SelectAndScatter(const Op& p0, const Op& p1, const Op& p2, const std::vector<const char*>& p3, const std::vector<int64_t>& p4, const std::vector<int64_t>& p5, const std::vector<std::vector<int64_t>>& p6, const Type& p7);
Op Gather(const Op& p0, const Op& p1, const GatherDimensionNumbers& p2, const std::vector<int64_t>& p3, bool p4, const Type& p5);
Op Scatter(const Op& p0, const Op& p1, const Op& p2, const ScatterDimensionNumbers& p3, const std::vector<const char*>& p4);
Op BatchNormTraining(const Op& p0, const Op& p1, const Op& p2, double p3, int64_t p4, const Type& p5);
Op BatchNormInference(const Op& p0, const Op& p1, const Op& p2, const Op& p3, const Op& p4, double p5, int64_t p6, const Type& p7);
Op BatchNormGrad(const Op& p0, const Op& p1, const Op& p2, const Op& p3, const Op& p4, double p5, int64_t p6, const Type& p7);
Op LayerNorm(const Op& p0, const Op& p1, const Op& p2, int64_t p3, double p4, const Type& p5);
Op GetTupleElement(const Op& p0, int64_t p1);
Op Iota(const std::shared_ptr<Builder>& builder, int64_t p0, const Type& p1);

}  // namespace builder

#endif  // DICP_STUB_HLIR_BUILDER_CLIENT_OPS_H
