"""Kernels of the backend `tritongraph` become machine code for a GPU that is not here, at the sizes of real models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from triton_target import DeviceTarget

from dicp.loops.evaluate_program import evaluate_program
from dicp.vendor.TritonGraph import config

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled"
    ),
]
SHARED_MEMORY = 227 * 1024


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is compiled; a graph itself is interpreted."""
    from triton.runtime.driver import driver

    from dicp.vendor.TritonGraph import launching, loading

    found: list[Any] = []

    def load(made: Any, program: Any, constants: Any, device: Any) -> Any:
        names = launching.loaded_module(made.source)
        for kernel in made.kernels:
            pointers = [dtype for _, dtype in kernel.pointers]
            for launch in kernel.launches:
                launcher = launching.KernelLauncher(
                    names[launch.name], launch.warps, pointers, len(kernel.numbers)
                )
                found.append(launcher.warm_up())
        return lambda *inputs: evaluate_program(program, list(inputs))

    monkeypatch.setenv("DICP_FALLBACK", "never")
    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(config, "launch_device_types", lambda: frozenset({"cpu"}))
    monkeypatch.setattr(config, "_multiprocessors", lambda device: 132)
    before = driver._active
    driver.set_active(DeviceTarget())
    yield found
    driver._active = before


def compiled(function: Callable[..., Any], *arguments: Tensor, **options: Any) -> None:
    with torch.no_grad():
        torch.compile(function, backend="tritongraph", fullgraph=True, **options)(*arguments)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(64, 4096), (4096, 128), (2, 40000), (16, 16384)],
    ids=["rows", "several rows", "rows in blocks", "wide rows"],
)
def test_norms_fit_a_multiprocessor(kernels: list[Any], rows: int, columns: int) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.layer_norm(F.gelu(x) * x.sigmoid(), x.shape[1:], w)
        return y, y.softmax(1), y.argmax(1), y.cumsum(1)

    x = torch.randn(rows, columns, dtype=torch.bfloat16)
    compiled(function, x, x[0])
    assert kernels and all(kernel.metadata.shared <= SHARED_MEMORY for kernel in kernels)
    assert any(".v4.b32" in kernel.asm["ptx"] for kernel in kernels), "nothing is read 16 bytes at a time"


def test_shares_of_columns_are_joined(kernels: list[Any]) -> None:
    compiled(lambda x: (x.sum(0), x.amax()), torch.ones(4096, 256))
    assert [kernel.name for kernel in kernels] == ["k0", "k0_joined", "k1", "k1_joined"]


def test_a_transpose_reads_and_stores_neighbours(kernels: list[Any]) -> None:
    compiled(lambda x: x.t().contiguous() + 1, torch.ones(512, 768))
    (kernel,) = kernels
    assert kernel.metadata.shared > 0 and ".v4.b32" in kernel.asm["ptx"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_integers_and_functions_of_the_library(kernels: list[Any], dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x.float()
        whole = torch.div(x, y, rounding_mode="floor"), x << (y & 3), x >> (y & 3), ~x, torch.gcd(x, y), x**3
        return (*whole, x.sum(1), z.erfinv(), z.lgamma(), z.digamma(), x.double().exp(), x.bool().any(0))

    compiled(function, torch.ones(8, 64, dtype=dtype), torch.ones(8, 64, dtype=dtype))
    assert kernels


def test_sizes_are_arguments(kernels: list[Any]) -> None:
    compiled(lambda x, y: (x.softmax(-1) + y, x.sum()), torch.ones(70, 90), torch.ones(90), dynamic=True)
    assert kernels
    for kernel in kernels:
        numbers = {n for n, kind in enumerate(kernel.src.signature.values()) if kind == "i64"}
        assert numbers and numbers.isdisjoint(place for (place,) in kernel.src.attrs), "sizes are specialised"


def test_a_lookup_checks_its_index(kernels: list[Any]) -> None:
    compiled(lambda t, i: F.embedding(i, t) * 2, torch.ones(100, 130), torch.ones(5, 6, dtype=torch.int64))
    (kernel,) = kernels
    assert "errors" in kernel.src.fn.arg_names
