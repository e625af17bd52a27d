// Written by declaration.py from the table of operators: do not edit.
#include "recorder.h"

namespace builder {

Op Abs(const Op& p0) {
    return record(recording_of(p0), "Abs", {json(p0)});
}

Op Neg(const Op& p0) {
    return record(recording_of(p0), "Neg", {json(p0)});
}

Op Exp(const Op& p0) {
    return record(recording_of(p0), "Exp", {json(p0)});
}

Op Log(const Op& p0) {
    return record(recording_of(p0), "Log", {json(p0)});
}

Op Sqrt(const Op& p0) {
    return record(recording_of(p0), "Sqrt", {json(p0)});
}

Op Rsqrt(const Op& p0) {
    return record(recording_of(p0), "Rsqrt", {json(p0)});
}

Op Reciprocal(const Op& p0) {
    return record(recording_of(p0), "Reciprocal", {json(p0)});
}

Op Sin(const Op& p0) {
    return record(recording_of(p0), "Sin", {json(p0)});
}

Op Cos(const Op& p0) {
    return record(recording_of(p0), "Cos", {json(p0)});
}

Op Tanh(const Op& p0) {
    return record(recording_of(p0), "Tanh", {json(p0)});
}

Op Sigmoid(const Op& p0) {
    return record(recording_of(p0), "Sigmoid", {json(p0)});
}

Op Relu(const Op& p0) {
    return record(recording_of(p0), "Relu", {json(p0)});
}

Op Erf(const Op& p0) {
    return record(recording_of(p0), "Erf", {json(p0)});
}

Op Floor(const Op& p0) {
    return record(recording_of(p0), "Floor", {json(p0)});
}

Op Sign(const Op& p0) {
    return record(recording_of(p0), "Sign", {json(p0)});
}

Op Square(const Op& p0) {
    return record(recording_of(p0), "Square", {json(p0)});
}

Op Swish(const Op& p0) {
    return record(recording_of(p0), "Swish", {json(p0)});
}

Op HardSwish(const Op& p0) {
    return record(recording_of(p0), "HardSwish", {json(p0)});
}

Op Atan(const Op& p0) {
    return record(recording_of(p0), "Atan", {json(p0)});
}

Op Not(const Op& p0) {
    return record(recording_of(p0), "Not", {json(p0)});
}

Op Add(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Add", {json(p0), json(p1)});
}

Op Sub(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Sub", {json(p0), json(p1)});
}

Op Mul(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Mul", {json(p0), json(p1)});
}

Op Div(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Div", {json(p0), json(p1)});
}

Op Pow(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Pow", {json(p0), json(p1)});
}

Op Max(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Max", {json(p0), json(p1)});
}

Op Min(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Min", {json(p0), json(p1)});
}

Op And(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "And", {json(p0), json(p1)});
}

Op Or(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Or", {json(p0), json(p1)});
}

Op Equal(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Equal", {json(p0), json(p1)});
}

Op NotEqual(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "NotEqual", {json(p0), json(p1)});
}

Op Less(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Less", {json(p0), json(p1)});
}

Op LessEqual(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "LessEqual", {json(p0), json(p1)});
}

Op Greater(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Greater", {json(p0), json(p1)});
}

Op GreaterEqual(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "GreaterEqual", {json(p0), json(p1)});
}

Op Compare(const Op& p0, const Op& p1, const char* p2) {
    return record(recording_of(p0), "Compare", {json(p0), json(p1), json(p2)});
}

Op IsFinite(const Op& p0) {
    return record(recording_of(p0), "IsFinite", {json(p0)});
}

Op Select(const Op& p0, const Op& p1, const Op& p2) {
    return record(recording_of(p0), "Select", {json(p0), json(p1), json(p2)});
}

Op Clamp(const Op& p0, const Op& p1, const Op& p2) {
    return record(recording_of(p0), "Clamp", {json(p0), json(p1), json(p2)});
}

Op Gelu(const Op& p0, bool p1) {
    return record(recording_of(p0), "Gelu", {json(p0), json(p1)});
}

Op GeluGrad(const Op& p0, const Op& p1, bool p2) {
    return record(recording_of(p0), "GeluGrad", {json(p0), json(p1), json(p2)});
}

Op ReluGrad(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "ReluGrad", {json(p0), json(p1)});
}

Op LeakyRelu(const Op& p0, double p1) {
    return record(recording_of(p0), "LeakyRelu", {json(p0), json(p1)});
}

Op HardSwishGrad(const Op& p0, const Op& p1, double p2, double p3, double p4) {
    return record(recording_of(p0), "HardSwishGrad", {json(p0), json(p1), json(p2), json(p3), json(p4)});
}

Op Softmax(const Op& p0, int64_t p1, bool p2, bool p3, double p4) {
    return record(recording_of(p0), "Softmax", {json(p0), json(p1), json(p2), json(p3), json(p4)});
}

Op Convert(const Op& p0, const Type& p1) {
    return record(recording_of(p0), "Convert", {json(p0), json(p1)});
}

Op Reshape(const Op& p0, const Type& p1) {
    return record(recording_of(p0), "Reshape", {json(p0), json(p1)});
}

Op BroadcastInDim(const Op& p0, const std::vector<int64_t>& p1, const Type& p2) {
    return record(recording_of(p0), "BroadcastInDim", {json(p0), json(p1), json(p2)});
}

Op Transpose(const Op& p0, const std::vector<int64_t>& p1) {
    return record(recording_of(p0), "Transpose", {json(p0), json(p1)});
}

Op Reverse(const Op& p0, const std::vector<int64_t>& p1, const Type& p2) {
    return record(recording_of(p0), "Reverse", {json(p0), json(p1), json(p2)});
}

Op Slice(const Op& p0, const std::vector<int64_t>& p1, const std::vector<int64_t>& p2, const std::vector<int64_t>& p3) {
    return record(recording_of(p0), "Slice", {json(p0), json(p1), json(p2), json(p3)});
}

Op Concatenate(const std::vector<Op>& p0, int64_t p1) {
    return record(recording_of(p0), "Concatenate", {json(p0), json(p1)});
}

Op Pad(const Op& p0, const Op& p1, int64_t p2, const std::vector<int64_t>& p3, const std::vector<int64_t>& p4, const std::vector<int64_t>& p5) {
    return record(recording_of(p0), "Pad", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5)});
}

Op ZerosLike(const Op& p0) {
    return record(recording_of(p0), "ZerosLike", {json(p0)});
}

Op OnesLike(const Op& p0) {
    return record(recording_of(p0), "OnesLike", {json(p0)});
}

Op ReduceSum(const Op& p0, bool p1, const std::vector<int64_t>& p2) {
    return record(recording_of(p0), "ReduceSum", {json(p0), json(p1), json(p2)});
}

Op ReduceMean(const Op& p0, bool p1, const std::vector<int64_t>& p2) {
    return record(recording_of(p0), "ReduceMean", {json(p0), json(p1), json(p2)});
}

Op ReduceMax(const Op& p0, bool p1, const std::vector<int64_t>& p2) {
    return record(recording_of(p0), "ReduceMax", {json(p0), json(p1), json(p2)});
}

Op ReduceMin(const Op& p0, bool p1, const std::vector<int64_t>& p2) {
    return record(recording_of(p0), "ReduceMin", {json(p0), json(p1), json(p2)});
}

Op ReduceProd(const Op& p0, bool p1, const std::vector<int64_t>& p2) {
    return record(recording_of(p0), "ReduceProd", {json(p0), json(p1), json(p2)});
}

Op ArgMax(const Op& p0, int64_t p1, bool p2) {
    return record(recording_of(p0), "ArgMax", {json(p0), json(p1), json(p2)});
}

Op ArgMin(const Op& p0, int64_t p1, bool p2) {
    return record(recording_of(p0), "ArgMin", {json(p0), json(p1), json(p2)});
}

Op CumSum(const Op& p0, const Op& p1, bool p2, bool p3) {
    return record(recording_of(p0), "CumSum", {json(p0), json(p1), json(p2), json(p3)});
}

Op TopK(const Op& p0, const Op& p1, int64_t p2, bool p3, bool p4) {
    return record(recording_of(p0), "TopK", {json(p0), json(p1), json(p2), json(p3), json(p4)});
}

Op Dot(const Op& p0, const Op& p1) {
    return record(recording_of(p0), "Dot", {json(p0), json(p1)});
}

Op DotGeneral(const Op& p0, const Op& p1, const DotDimensionNumbers& p2) {
    return record(recording_of(p0), "DotGeneral", {json(p0), json(p1), json(p2)});
}

Op Conv(const Op& p0, const Op& p1, const ConvDimensionNumbers& p2, const std::vector<int64_t>& p3, const std::vector<std::vector<int64_t>>& p4, const std::vector<int64_t>& p5, const std::vector<int64_t>& p6, const std::vector<bool>& p7, const char* p8, int64_t p9, int64_t p10, const std::vector<const char*>& p11) {
    return record(recording_of(p0), "Conv", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6), json(p7), json(p8), json(p9), json(p10), json(p11)});
}

Op Conv2D(const std::vector<Op>& p0, int64_t p1, const char* p2, const char* p3, const std::vector<int64_t>& p4, const std::vector<int64_t>& p5, const std::vector<int64_t>& p6) {
    return record(recording_of(p0), "Conv2D", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6)});
}

Op MaxPool2D(const Op& p0, const std::vector<int64_t>& p1, bool p2, bool p3, const char* p4, const char* p5, const std::vector<int64_t>& p6, const std::vector<int64_t>& p7, const std::vector<int64_t>& p8) {
    return record(recording_of(p0), "MaxPool2D", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6), json(p7), json(p8)});
}

Op AveragePool(const Op& p0, const std::vector<int64_t>& p1, const std::vector<int64_t>& p2, bool p3, bool p4, const std::vector<int64_t>& p5, const std::vector<int64_t>& p6, const char* p7) {
    return record(recording_of(p0), "AveragePool", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6), json(p7)});
}

Op SelectAndScatter(const Op& p0, const Op& p1, const Op& p2, const std::vector<const char*>& p3, const std::vector<int64_t>& p4, const std::vector<int64_t>& p5, const std::vector<std::vector<int64_t>>& p6, const Type& p7) {
    return record(recording_of(p0), "SelectAndScatter", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6), json(p7)});
}

Op Gather(const Op& p0, const Op& p1, const GatherDimensionNumbers& p2, const std::vector<int64_t>& p3, bool p4, const Type& p5) {
    return record(recording_of(p0), "Gather", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5)});
}

Op Scatter(const Op& p0, const Op& p1, const Op& p2, const ScatterDimensionNumbers& p3, const std::vector<const char*>& p4) {
    return record(recording_of(p0), "Scatter", {json(p0), json(p1), json(p2), json(p3), json(p4)});
}

Op BatchNormTraining(const Op& p0, const Op& p1, const Op& p2, double p3, int64_t p4, const Type& p5) {
    return record(recording_of(p0), "BatchNormTraining", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5)});
}

Op BatchNormInference(const Op& p0, const Op& p1, const Op& p2, const Op& p3, const Op& p4, double p5, int64_t p6, const Type& p7) {
    return record(recording_of(p0), "BatchNormInference", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6), json(p7)});
}

Op BatchNormGrad(const Op& p0, const Op& p1, const Op& p2, const Op& p3, const Op& p4, double p5, int64_t p6, const Type& p7) {
    return record(recording_of(p0), "BatchNormGrad", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5), json(p6), json(p7)});
}

Op LayerNorm(const Op& p0, const Op& p1, const Op& p2, int64_t p3, double p4, const Type& p5) {
    return record(recording_of(p0), "LayerNorm", {json(p0), json(p1), json(p2), json(p3), json(p4), json(p5)});
}

Op GetTupleElement(const Op& p0, int64_t p1) {
    return record(recording_of(p0), "GetTupleElement", {json(p0), json(p1)});
}

Op Iota(const std::shared_ptr<Builder>& builder, int64_t p0, const Type& p1) {
    return record(builder->recording(), "Iota", {json(p0), json(p1)});
}

}  // namespace builder
