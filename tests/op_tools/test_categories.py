"""Kinds of operators, by function and by overload."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.categories import base_name, category_of, is_random, may_draw

pytestmark = pytest.mark.unit
ATEN = torch.ops.aten
X = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("torch.Tensor.add_", "add"),
        ("aten.add_.Tensor", "add"),
        ("torch.ops.aten.add.Tensor", "add"),
        ("torch.Tensor.__iadd__", "add"),
        ("torch.Tensor.__and__", "and"),
        ("torch.Tensor.__index__", "__index__"),
        ("torch.Tensor.T.__get__", "T"),
        ("torch._foreach_mul_", "mul"),
        ("aten._foreach_mul_.List", "mul"),
        ("torch.nn.functional.linear", "linear"),
    ],
)
def test_base_names(name: str, base: str) -> None:
    assert base_name(name) == base


@pytest.mark.parametrize(
    ("func", "name", "category"),
    [
        (torch.Tensor.add_, "torch.Tensor.add_", "elementwise"),
        (ATEN.add_.Tensor, "aten.add_.Tensor", "elementwise"),
        (torch.exp, "torch.exp", "elementwise"),
        (functional.gelu, "torch.nn.functional.gelu", "elementwise"),
        (ATEN.addcdiv.default, "aten.addcdiv.default", "elementwise"),
        (torch.sum, "torch.sum", "reduction"),
        (ATEN.cumsum.default, "aten.cumsum.default", "reduction"),
        (torch.Tensor.index_add_, "torch.Tensor.index_add_", "reduction"),
        (ATEN.embedding_dense_backward.default, "aten.embedding_dense_backward.default", "reduction"),
        (functional.linear, "torch.nn.functional.linear", "matmul"),
        (torch.Tensor.__matmul__, "torch.Tensor.__matmul__", "matmul"),
        (ATEN.convolution_backward.default, "aten.convolution_backward.default", "matmul"),
        (ATEN._scaled_dot_product_flash_attention.default, "", "matmul"),
        (torch.cat, "torch.cat", "movement"),
        (ATEN._to_copy.default, "aten._to_copy.default", "movement"),
        (torch.relu, "torch.relu", "movement"),
        (torch.Tensor.__getitem__, "torch.Tensor.__getitem__", "movement"),
        (ATEN.threshold_backward.default, "aten.threshold_backward.default", "movement"),
        (torch.Tensor.item, "torch.Tensor.item", "movement"),
        (torch.argmax, "torch.argmax", "index"),
        (ATEN.sort.default, "aten.sort.default", "index"),
        (torch.Tensor.max, "torch.Tensor.max", "index"),
        (ATEN.transpose.int, "aten.transpose.int", "view"),
        (torch.Tensor.view, "torch.Tensor.view", "view"),
        (torch.Tensor.T.__get__, "torch.Tensor.T.__get__", "view"),
        (torch.rand, "torch.rand", "random"),
        (ATEN.native_dropout.default, "aten.native_dropout.default", "random"),
        (torch.Tensor.uniform_, "torch.Tensor.uniform_", "random"),
        (torch.empty_like, "torch.empty_like", "uninitialised"),
        (ATEN.new_empty.default, "aten.new_empty.default", "uninitialised"),
        (torch.distributed.all_reduce, "torch.distributed.all_reduce", "communication"),
        (functional.layer_norm, "torch.nn.functional.layer_norm", "other"),
        (ATEN._log_softmax.default, "aten._log_softmax.default", "other"),
        (lambda x: x, "mine.function", "other"),
    ],
)
def test_categories(func: Any, name: str, category: str) -> None:
    assert category_of(func, name) == category


@pytest.mark.parametrize(
    ("func", "name", "args", "kwargs", "random"),
    [
        (functional.dropout, "torch.nn.functional.dropout", (X,), {}, True),
        (functional.dropout, "torch.nn.functional.dropout", (X, 0.5, False), {}, False),
        (functional.dropout, "torch.nn.functional.dropout", (X,), {"p": 0.0}, False),
        (functional.alpha_dropout, "torch.nn.functional.alpha_dropout", (X,), {}, False),
        (torch.dropout, "torch.dropout", (X, 0.1, True), {}, True),
        (ATEN.native_dropout.default, "aten.native_dropout.default", (X, 0.1, None), {}, True),
        (ATEN.native_dropout.default, "aten.native_dropout.default", (X, 0.1, False), {}, False),
        (
            functional.scaled_dot_product_attention,
            "torch.nn.functional.scaled_dot_product_attention",
            (X, X, X),
            {},
            False,
        ),
        (
            functional.scaled_dot_product_attention,
            "torch.nn.functional.scaled_dot_product_attention",
            (X, X, X),
            {"dropout_p": 0.1},
            True,
        ),
        (ATEN._scaled_dot_product_flash_attention.default, "", (X, X, X, 0.2), {}, True),
        (ATEN._scaled_dot_product_flash_attention.default, "", (X, X, X), {}, False),
        (functional.rrelu, "torch.nn.functional.rrelu", (X,), {}, False),
        (functional.rrelu, "torch.nn.functional.rrelu", (X,), {"training": True}, True),
        (torch.lstm, "torch.lstm", (X, (X, X), [X], True, 2, 0.5, True, False, True), {}, True),
        (torch.lstm, "torch.lstm", (X, (X, X), [X], True, 2, 0.5, False, False, True), {}, False),
        (torch.lstm, "torch.lstm", (X, (X, X), [X], True, 1, 0.5, True, False, True), {}, False),
        (torch.gru, "torch.gru", (X, X, X, [X], True, 2, 0.5, True, False), {}, True),
        (torch.Tensor.bernoulli_, "torch.Tensor.bernoulli_", (X,), {}, True),
        (ATEN.randperm.default, "aten.randperm.default", (4,), {}, True),
        (torch.add, "torch.add", (X, X), {}, False),
    ],
)
def test_whether_a_call_draws(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], random: bool
) -> None:
    assert is_random(func, name, args, kwargs) is random
    assert may_draw(func, name) or not random
