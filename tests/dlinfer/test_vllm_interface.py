"""The stand-ins and dlinfer's classes beside vLLM's own sources, which are read and not imported."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import vllm_stand_in as stand_in

pytestmark = pytest.mark.unit
_OURS = "dlinfer.framework.vllm_ext"


def _checked() -> Iterator[tuple[str, type]]:
    """The stand-ins that are classes of vLLM, with the modules they stand for."""
    for module, contents in stand_in._contents().items():
        for kind in contents.values():
            if isinstance(kind, type) and not issubclass(kind, Enum) and kind.__name__ in vars(stand_in):
                yield module, kind


def _parameters(kind: type, name: str) -> list[str]:
    function = inspect.unwrap(getattr(kind, name))
    return list(inspect.signature(getattr(function, "__func__", function)).parameters)


@pytest.fixture(scope="module")
def sources() -> Path:
    """The folder of vLLM's sources."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed: docs/vllm.md says how")
    folder = Path(found.origin).parent
    version = (folder / "_version.py").read_text() if (folder / "_version.py").is_file() else ""
    if f"'{stand_in.VERSION}'" not in version and f'"{stand_in.VERSION}"' not in version:
        pytest.skip(f"another vLLM than {stand_in.VERSION} is installed")
    return folder


def _written(sources: Path, module: str, kind: type) -> tuple[dict[str, ast.FunctionDef], set[str]]:
    """The functions of vLLM's class or, behind them, of its neighbours (it inherits from these); and its fields."""
    file = (sources.parent / Path(*module.split("."))).with_suffix(".py")
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    (own,) = [node for node in classes if node.name == kind.__name__]
    parts = [part for node in (*classes, own) for part in node.body]
    fields = {
        part.target.id
        for part in own.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    return {part.name: part for part in parts if isinstance(part, ast.FunctionDef)}, fields


@pytest.mark.parametrize(
    ("module", "kind"), list(_checked()), ids=lambda value: getattr(value, "__name__", "")
)
def test_stand_ins_have_vllms_parameters(sources: Path, module: str, kind: type) -> None:
    functions, fields = _written(sources, module, kind)
    if is_dataclass(kind):
        assert {field.name for field in dataclass_fields(kind)} <= fields
        return
    for name, value in vars(kind).items():
        if isinstance(value, (FunctionType, classmethod, staticmethod)):
            given = functions[name].args
            wanted = [
                a.arg for a in (*given.args, *given.kwonlyargs, given.vararg, given.kwarg) if a is not None
            ]
            assert _parameters(kind, name) == wanted, f"{kind.__name__}.{name}"


def test_what_is_overridden_takes_vllms_parameters() -> None:
    """Every method of ours that has one of vLLM's below it can be called with that one's parameters."""
    with stand_in.installed():
        import importlib

        attention = importlib.import_module(f"{_OURS}.attention")
        platform = importlib.import_module(f"{_OURS}.platform")
        layers = importlib.import_module(f"{_OURS}.layers")
        pairs: list[tuple[Any, Any]] = [
            (attention.DlinferAttentionBackend, stand_in.AttentionBackend),
            (attention.DlinferMetadataBuilder, stand_in.AttentionMetadataBuilder),
            (attention.DlinferAttention, stand_in.AttentionImpl),
            (platform.DlinferPlatform, stand_in.Platform),
            (layers.DlinferLinearMethod, stand_in.UnquantizedLinearMethod),
            (layers.DlinferEmbeddingMethod, stand_in.UnquantizedEmbeddingMethod),
            (layers.DlinferFusedMoEMethod, stand_in.UnquantizedFusedMoEMethod),
        ]
        compared = 0
        for ours, theirs in pairs:
            for name in set(vars(ours)) & set(vars(theirs)):
                if not inspect.isroutine(getattr(theirs, name)):
                    continue
                wanted = [
                    p for p in _parameters(theirs, name) if p not in ("args", "kwargs", "extra_weight_attrs")
                ]
                found = _parameters(ours, name)
                assert found == wanted or found[-2:] == ["args", "kwargs"], f"{ours.__name__}.{name}"
                compared += 1
    assert compared >= 20
