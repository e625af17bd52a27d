"""Fixtures of the tests of dicp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from dicp_small_backend import SmallBackend

import dicp.errors
from dicp import registry
from dicp.dynamo_bridge.compile_fx import compile_fx


@pytest.fixture(autouse=True)
def fresh_dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No graph of another test, and warnings are said again."""
    torch._dynamo.reset()
    monkeypatch.setattr(dicp.errors, "_SAID", set())
    yield
    torch._dynamo.reset()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SmallBackend:
    backend = SmallBackend()
    monkeypatch.setitem(registry._REGISTERED, backend.name, backend)
    return backend


@pytest.fixture
def compiled(small: SmallBackend) -> Callable[..., Any]:
    """torch.compile with the small backend."""

    def smallgraph(gm, inputs, **kwargs):
        return compile_fx(gm, inputs, "smallgraph", **kwargs)

    def compile_it(function, **kwargs):
        return torch.compile(function, backend=smallgraph, **kwargs)

    return compile_it
