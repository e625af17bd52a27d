"""The operators of the graph compiler's builder that conversions write.

An operator has the arguments of the builder's C++ function. The table is the one list of them: the code generator prints calls
by it, the declared stub of the builder is generated from it, and recordings of a program are read by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dicp.dynamo_bridge.conversion import VendorOperator
from dicp.vendor.TopsGraph import inference

__all__ = ["KINDS", "TABLE", "TopsOperator", "operator_named"]

KINDS = {
    "op": "Op",
    "ops": "std::vector<Op>",
    "int": "int64_t",
    "bool": "bool",
    "float": "double",
    "text": "const char*",
    "ints": "std::vector<int64_t>",
    "bools": "std::vector<bool>",
    "pairs": "std::vector<std::vector<int64_t>>",
    "texts": "std::vector<const char*>",
    "type": "Type",
    "dot_dims": "DotDimensionNumbers",
    "conv_dims": "ConvDimensionNumbers",
    "gather_dims": "GatherDimensionNumbers",
    "scatter_dims": "ScatterDimensionNumbers",
}
"""What an argument is, and its type in C++."""


class TopsOperator(VendorOperator):
    """A function of the builder.

    `type` in the signature is the type of the result: it is not an argument of the node, but printed from what was inferred.
    Keywords of a node are for inference alone.
    """

    def __init__(
        self, name: str, signature: str, rule: Callable[..., Any], attributes: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.name = name
        self.kinds = tuple(signature.split())
        self.attributes = tuple(attributes)
        """Set on the result, by name: hints that the compiler chooses kernels by."""
        self.rule = rule

    def result_types(self, *args: Any, **kwargs: Any) -> inference.ResultType | list[inference.ResultType]:
        """The type that a call gives, or those of a tuple."""
        found: inference.ResultType | list[inference.ResultType] = self.rule(*args, **kwargs)
        return found

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        types = self.result_types(*args, **kwargs)
        like = next((x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)), None)
        if isinstance(types, list):
            return [_empty(like, *result) for result in types]
        return _empty(like, *types)


def _empty(like: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if like is None:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")
    return like.new_empty(tuple(shape), dtype=dtype)


def _operators() -> Iterator[TopsOperator]:
    unary = "Abs Neg Exp Log Sqrt Rsqrt Reciprocal Sin Cos Tanh Sigmoid Relu Erf Floor Sign Square Swish HardSwish Atan Not"
    for name in unary.split():
        yield TopsOperator(name, "op", inference.like_first)
    for name in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "And", "Or"):
        yield TopsOperator(name, "op op", inference.broadcast)
    for name in ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"):
        yield TopsOperator(name, "op op", inference.comparison)
    yield TopsOperator("Compare", "op op text", inference.comparison)
    yield TopsOperator("IsFinite", "op", inference.predicate)
    yield TopsOperator("Select", "op op op", inference.select)
    yield TopsOperator("Clamp", "op op op", inference.clamp)
    yield TopsOperator("Gelu", "op bool", inference.like_first)
    yield TopsOperator("GeluGrad", "op op bool", inference.like_first)
    yield TopsOperator("ReluGrad", "op op", inference.like_first)
    yield TopsOperator("LeakyRelu", "op float", inference.like_first)
    yield TopsOperator("HardSwishGrad", "op op float float float", inference.like_first)
    yield TopsOperator("Softmax", "op int bool bool float", inference.like_first)

    yield TopsOperator("Convert", "op type", inference.declared)
    yield TopsOperator("Reshape", "op type", inference.reshape)
    yield TopsOperator("BroadcastInDim", "op ints type", inference.broadcast_in_dim)
    yield TopsOperator("Transpose", "op ints", inference.transpose)
    yield TopsOperator("Reverse", "op ints type", inference.reversed_)
    yield TopsOperator("Slice", "op ints ints ints", inference.slice_)
    yield TopsOperator("Concatenate", "ops int", inference.concatenate)
    yield TopsOperator("Pad", "op op int ints ints ints", inference.pad)
    yield TopsOperator("ZerosLike", "op", inference.like_first)
    yield TopsOperator("OnesLike", "op", inference.like_first)

    for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        yield TopsOperator(name, "op bool ints", inference.reduce)
    yield TopsOperator("ArgMax", "op int bool", inference.index_of_extreme)
    yield TopsOperator("ArgMin", "op int bool", inference.index_of_extreme)
    yield TopsOperator("CumSum", "op op bool bool", inference.like_first)
    yield TopsOperator("TopK", "op op int bool bool", inference.top_k)

    product = (("op_type", "DotInference"),)
    yield TopsOperator("Dot", "op op", inference.dot, product)
    yield TopsOperator("DotGeneral", "op op dot_dims", inference.dot_general, product)
    yield TopsOperator(
        "Conv", "op op conv_dims ints pairs ints ints bools text int int texts", inference.convolution
    )
    yield TopsOperator(
        "Conv2D", "ops int text text ints ints ints", inference.conv2d, (("op_type", "Conv2DInference"),)
    )
    yield TopsOperator("MaxPool2D", "op ints bool bool text text ints ints ints", inference.max_pool2d)
    yield TopsOperator("AveragePool", "op ints ints bool bool ints ints text", inference.average_pool)
    yield TopsOperator("SelectAndScatter", "op op op texts ints ints pairs type", inference.like_first)

    yield TopsOperator("Gather", "op op gather_dims ints bool type", inference.gather)
    yield TopsOperator("Scatter", "op op op scatter_dims texts", inference.like_first)

    yield TopsOperator("BatchNormTraining", "op op op float int type", inference.batch_norm_training)
    yield TopsOperator("BatchNormInference", "op op op op op float int type", inference.like_first)
    yield TopsOperator("BatchNormGrad", "op op op op op float int type", inference.batch_norm_grad)
    yield TopsOperator("LayerNorm", "op op op int float type", inference.layer_norm)
    yield TopsOperator("GetTupleElement", "op int", inference.element)

    # The builder is the first argument of these two; the value of a constant is printed by its dtype.
    yield TopsOperator("Iota", "int type", lambda _axis, **result: inference.declared(**result))
    yield TopsOperator("Const", "value type", lambda _value, **result: inference.declared(**result))


TABLE = {operator.name: operator for operator in _operators()}


def operator_named(name: str) -> TopsOperator:
    """The operator of a builder's function."""
    return TABLE[name]
