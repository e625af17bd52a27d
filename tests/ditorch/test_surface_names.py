"""A walk over the whole of `torch.cuda`: each name acts on the device, or raises the documented error."""

from __future__ import annotations

import inspect
import types
from pathlib import Path

import pytest
import surface_submodules  # noqa: F401  (adds its checks)
import torch
from surface_checks import CHECKS, REFUSED, Check

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped"), pytest.mark.filterwarnings("ignore")]


def test_every_name_has_a_check() -> None:
    """The list is the installed torch's: a newer one shows here what it added."""
    assert sorted(set(torch.cuda.__all__) - CHECKS.keys() - REFUSED.keys()) == []
    assert sorted(CHECKS.keys() & REFUSED.keys()) == []


@pytest.mark.parametrize("name", sorted(set(torch.cuda.__all__) & CHECKS.keys()))
def test_a_mapped_name_acts(name: str, tmp_path: Path) -> None:
    CHECKS[name](tmp_path)


@pytest.mark.parametrize("name", sorted(set(torch.cuda.__all__) & REFUSED.keys()))
def test_a_refused_name_says_why(name: str, mapped: types.ModuleType) -> None:
    with pytest.raises(
        mapped.NotMapped, match=rf"torch\.cuda\.{name} is not available on 'dipu': .{{20,}}\."
    ):
        getattr(torch.cuda, name)(*REFUSED[name])


def test_arguments_have_the_names_of_torch_cuda(mapped: types.ModuleType) -> None:
    """`torch.cuda.memory_allocated(device=0)`: the device's functions take the same keywords."""
    from _ditorch.mapping.cuda_module import ways
    from _ditorch.session import of_process

    mapping = of_process().mapping
    offered = [name for name, way in ways(mapping.target).items() if way in ("offered", "derived")]
    originals = {p.name: p.original for p in mapping.patches.attributes() if p.owner is torch.cuda}
    missing = {
        name: set(inspect.signature(originals[name]).parameters)
        - set(inspect.signature(getattr(torch.cuda, name)).parameters)
        for name in offered
        if isinstance(originals[name], types.FunctionType)
    }
    assert len(missing) > 40
    assert {name: keywords for name, keywords in missing.items() if keywords} == {}


def _fails(check: Check, tmp_path: Path) -> bool:
    try:
        check(tmp_path)
    except (Exception, pytest.fail.Exception):
        return True
    return False


@pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="a torch built for cuda answers some without a card, such as nvtx"
)
def test_without_the_mapping_the_checks_fail(mapped: types.ModuleType, tmp_path: Path) -> None:
    """The checks look at effects: torch as it was, without a cuda device, passes none of those that need one."""
    mapped.disable()
    try:
        passed = [name for name, check in CHECKS.items() if not _fails(check, tmp_path)]
    finally:
        mapped.enable()
    # These say nothing of the device: the same functions are reachable under two names.
    assert sorted(passed) == ["graphs", "random", "streams"]


# Nothing is lost if these do nothing: the device is loaded by its first use, and shares no memory to collect.
_MAY_DO_NOTHING = {"init", "ipc_collect"}


_FUNCTIONS = [
    name for name in torch.cuda.__all__ if isinstance(getattr(torch.cuda, name), types.FunctionType)
]


@pytest.mark.parametrize("name", sorted(set(_FUNCTIONS) & CHECKS.keys() - _MAY_DO_NOTHING))
def test_a_function_that_does_nothing_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measure of the checks themselves."""
    monkeypatch.setattr(torch.cuda, name, lambda *args, **kwargs: None)
    assert _fails(CHECKS[name], tmp_path)
