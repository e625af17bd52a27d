"""Plain `import torch` registers the device, unless that would take the place of another accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import torch_dipu_autoload

pytestmark = pytest.mark.device


@pytest.fixture
def registered(monkeypatch):
    """Whether register() got as far as importing the package."""
    seen = []
    monkeypatch.delitem(torch_dipu_autoload.sys.modules, "torch_dipu", raising=False)
    monkeypatch.setattr(torch_dipu_autoload, "package", None)
    monkeypatch.setattr(torch_dipu_autoload.importlib, "import_module", seen.append)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    for name in ("DIPU_DEVICE", "DITORCH_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return seen


def nothing_else(monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)


def pretend(monkeypatch, devices: int) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(device_count=lambda: devices))


def test_nothing_else_there(registered, monkeypatch):
    nothing_else(monkeypatch)
    torch_dipu_autoload.register()
    assert registered == ["torch_dipu"]


def test_another_accelerator_without_devices(registered, monkeypatch):
    pretend(monkeypatch, 0)
    torch_dipu_autoload.register()
    assert registered == ["torch_dipu"]


def test_another_accelerator_with_a_device_is_left_alone(registered, monkeypatch):
    pretend(monkeypatch, 1)
    torch_dipu_autoload.register()
    assert registered == []


@pytest.mark.parametrize(("variable", "value"), [("DIPU_DEVICE", "host"), ("DITORCH_DEVICE", "dipu")])
def test_the_device_can_be_asked_for(registered, monkeypatch, variable, value):
    pretend(monkeypatch, 1)
    monkeypatch.setenv(variable, value)
    torch_dipu_autoload.register()
    assert registered == ["torch_dipu"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_place_that_is_taken_is_left_alone(registered, monkeypatch, asked):
    """A second registration would raise inside `import torch`."""
    nothing_else(monkeypatch)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "othername")
    if asked:
        monkeypatch.setenv("DITORCH_DEVICE", "dipu")
    torch_dipu_autoload.register()
    assert registered == []


def test_another_device_that_is_asked_for_goes_first(registered, monkeypatch):
    nothing_else(monkeypatch)
    monkeypatch.setenv("DITORCH_DEVICE", "npu")
    torch_dipu_autoload.register()
    assert registered == []


@pytest.mark.parametrize("asked", [False, True])
def test_another_package_that_registers_itself_goes_first(registered, monkeypatch, asked):
    nothing_else(monkeypatch)
    both = [SimpleNamespace(name="dipu"), SimpleNamespace(name="torch_npu")]
    monkeypatch.setattr(torch_dipu_autoload, "entry_points", lambda group: both)
    if asked:
        monkeypatch.setenv("DIPU_DEVICE", "host")
    torch_dipu_autoload.register()
    assert registered == (["torch_dipu"] if asked else [])
