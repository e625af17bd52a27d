"""What `import ditorch` does to a process, each time in a fresh one."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.device

_LINE = re.compile(r"^ditorch\.framework: (torch_dipu:0\.1\.0 \(\w+\))$", re.MULTILINE)


@pytest.mark.parametrize(("first", "second"), [("ditorch", "torch_dipu"), ("torch_dipu", "ditorch")])
def test_the_import_prints_once_and_stays_light(fresh_python, first: str, second: str) -> None:
    result = fresh_python(
        f"""
        import sys
        import torch
        import {first}
        import {second}
        import ditorch
        ditorch.enable()
        print("held:", ditorch.framework)
        heavy = {{"torch._dynamo", "torch._inductor", "typer", "rich"}} & sys.modules.keys()
        print("heavy:", sorted(heavy), "modes:", torch._C._len_torch_function_stack())
        print("on:", torch.zeros(1, device="cuda").device, isinstance(torch.device("cuda"), torch.device))
        """
    )
    found = _LINE.findall(result.stdout)
    assert len(found) == 1
    assert f"held: {found[0]}\n" in result.stdout
    assert "heavy: [] modes: 0" in result.stdout
    assert "on: dipu:0 True" in result.stdout


@pytest.mark.parametrize(
    "settings",
    [{"DIPU_MOCK_CUDA": "0"}, {"DITORCH_DISABLE_MOCK": "1"}],
    ids=lambda settings: next(iter(settings)),
)
def test_the_mapping_can_be_switched_off(fresh_python, settings: dict[str, str]) -> None:
    result = fresh_python(
        """
        import torch, ditorch
        print("device:", torch.device("cuda"), type(torch.device), ditorch.enabled())
        print("device works:", (torch.arange(3.0, device="dipu") + 1).tolist())
        ditorch.enable()
        print("asked for:", torch.device("cuda"))
        """,
        **settings,
    )
    assert _LINE.search(result.stdout)
    assert "device: cuda <class 'type'> False" in result.stdout
    assert "device works: [1.0, 2.0, 3.0]" in result.stdout
    assert "asked for: dipu" in result.stdout


def test_torch_dipu_alone_respects_the_switch(fresh_python) -> None:
    result = fresh_python(
        """
        import torch, torch_dipu
        print("device:", torch.device("cuda"), torch.arange(2.0, device="dipu").tolist())
        """,
        DIPU_MOCK_CUDA="false",
    )
    assert "device: cuda [0.0, 1.0]" in result.stdout


@pytest.mark.parametrize(
    ("settings", "mapped"),
    [({}, False), ({"DIPU_MOCK_CUDA": "1"}, True), ({"DITORCH_DEVICE": "dipu"}, True)],
    ids=["unasked", "DIPU_MOCK_CUDA", "DITORCH_DEVICE"],
)
def test_torch_dipu_alone_leaves_a_real_cuda_device_its_names(
    fresh_python, settings: dict[str, str], mapped: bool
) -> None:
    """Libraries such as mmengine import every package of a device that they find."""
    result = fresh_python(
        """
        import torch
        torch.cuda.is_available = lambda: True
        import torch_dipu
        print("device:", torch.device("cuda"), torch.arange(2.0, device="dipu").tolist())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        **settings,
    )
    assert f"device: {'dipu' if mapped else 'cuda'} [0.0, 1.0]" in result.stdout


def test_plain_torch_is_left_alone(fresh_python) -> None:
    result = fresh_python(
        """
        import sys, torch
        x = torch.arange(2.0, device="dipu")
        print("device:", torch.device("cuda"), "ditorch" in sys.modules, x.tolist())
        """
    )
    assert result.stdout == "device: cuda False [0.0, 1.0]\n"


def test_an_unknown_device_is_a_clear_error(fresh_python) -> None:
    result = fresh_python("import torch, ditorch", expect=1, DITORCH_DEVICE="abacus")
    last = result.stderr.strip().splitlines()[-1]
    assert "DITORCH_DEVICE='abacus'" in last
    assert "cuda, dipu" in last
    assert "unset it" in last


def test_the_real_cuda_is_never_touched(fresh_python) -> None:
    """The cuda adapter needs a cuda build to load; the mapping it would apply is none, on any build."""
    result = fresh_python(
        """
        import torch
        before = {name: value for name, value in vars(torch).items()}
        cuda_before = dict(vars(torch.cuda))
        from _ditorch.adapters.cuda import CudaAdapter
        from _ditorch.selection import Choice
        from _ditorch.session import Session
        CudaAdapter.load = lambda self: None
        session = Session()
        session.start(Choice(CudaAdapter(), "test"), quiet=True)
        session.enable()
        changed = [name for name, value in before.items() if vars(torch).get(name) is not value]
        changed += [name for name, value in cuda_before.items() if vars(torch.cuda)[name] is not value]
        print("changed:", changed, session.framework.startswith("torch:"), session.enabled)
        """,
        DITORCH_DISABLE_MOCK="1",
    )
    assert "changed: [] True False" in result.stdout


def test_other_ranks_are_silent(fresh_python) -> None:
    assert fresh_python("import ditorch", RANK="1").stdout == ""


def test_the_import_loads_nothing_that_is_slow_to_load(fresh_python) -> None:
    """What an import costs is what it loads: beside the standard library only this project, and little of torch."""
    result = fresh_python(
        """
        import sys, torch
        before = set(sys.modules)
        import ditorch
        new = {name for name in sys.modules if name not in before and name.partition(".")[0] not in sys.stdlib_module_names}
        ours = {"ditorch", "_ditorch", "dicore", "diopi", "torch_dipu", "torch_dipu_autoload"}
        print("foreign:", sorted(name for name in new if name.partition(".")[0] not in {*ours, "torch"}))
        print("of torch:", sum(name.startswith("torch.") for name in new))
        print("mapping:", sum(name.startswith("_ditorch.mapping.") for name in new))
        """
    )
    assert "foreign: []" in result.stdout
    of_torch, of_the_mapping = (
        int(result.stdout.partition(f"{what}: ")[2].split()[0]) for what in ("of torch", "mapping")
    )
    assert of_torch < 20  # torch._dynamo alone has hundreds
    assert of_the_mapping > 10
