"""What a test of a backend is written with: the chosen backend, compiled models, sizes for both modes, the device."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import _dynamo as dynamo

from dicp.conformance.declaration import Size

from .options import MODES, given

__all__ = [
    "CompiledModel",
    "Size",
    "compile_model",
    "dynamo",
    "get_device",
    "parse_args",
    "torch",
    "update_dynamo_config",
]


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model or function, and whether it is compiled for any size."""

    model: Callable[..., Any]
    dynamic: bool


def parse_args() -> argparse.Namespace:
    """`backend` and `dynamic`, as given on pytest's command line."""
    return given()


def compile_model(model: Callable[..., Any], backend: str, dynamic: str = "false") -> list[CompiledModel]:
    """The model compiled in the modes that are asked for, as parameters of a test."""
    if dynamic not in MODES:
        raise ValueError("DYNAMIC should in (true, false, all)")
    return [
        CompiledModel(torch.compile(model, backend=backend, dynamic=mode), mode) for mode in MODES[dynamic]
    ]


def update_dynamo_config(dynamic: bool = True) -> None:
    """Whether sizes are symbols from the first call on, also of what Dynamo would take for constants."""
    dynamo.config.assume_static_by_default = not dynamic
    dynamo.config.specialize_int = not dynamic


def get_device() -> str:
    """`cpu`; with DICP_TOPS_DIPU=True the device of torch_dipu, under the name `cuda` where DIPU_MOCK_CUDA says so."""
    if not _is_true("DICP_TOPS_DIPU"):
        return "cpu"
    import torch_dipu

    return "cuda:0" if _is_true("DIPU_MOCK_CUDA") else f"{torch_dipu.dipu.device.__dipu__}:0"


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("true", "1")
