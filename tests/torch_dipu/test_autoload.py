"""Plain `import torch` registers the device, unless that would take the place of another accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import torch_dipu_autoload

pytestmark = pytest.mark.device


@pytest.fixture
def registered(monkeypatch):
    """Whether register() got as far as looking for the package."""
    seen = []
    monkeypatch.delitem(torch_dipu_autoload.sys.modules, "torch_dipu", raising=False)
    monkeypatch.setattr(torch_dipu_autoload.importlib.util, "find_spec", lambda name: seen.append(name))
    for name in ("DIPU_DEVICE", "DITORCH_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return seen


def pretend(monkeypatch, devices: int) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(device_count=lambda: devices))


def test_nothing_else_there(registered, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
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
