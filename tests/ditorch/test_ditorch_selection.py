"""Which framework is chosen, and the settings that decide it."""

from __future__ import annotations

import pytest

from _ditorch.adapters import Adapter, Availability, all_adapters
from _ditorch.diagnosis import FrameworkDiagnosis, _choice
from _ditorch.selection import NoFrameworkError, UnknownDeviceError, choose, ignored_settings, mapping_wanted
from _ditorch.session import untested_torch

pytestmark = pytest.mark.unit


class Chip(Adapter):
    device_type = "chip"

    def __init__(
        self, name: str, devices: int = 0, installed: bool = True, wish: str = "", *, broken: str = ""
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.package = f"torch_{name}"  # type: ignore[misc]
        self._broken = broken
        self._devices, self._installed, self._wish = devices, installed, wish
        self.probed = False

    def installed(self) -> bool:
        return self._installed

    def requested(self) -> str:
        return self._wish

    def availability(self) -> Availability:
        self.probed = True
        return Availability(self._devices, self._broken, broken=bool(self._broken))

    def load(self) -> None: ...

    def version(self) -> str:
        return "2.1.0.post3"

    def target(self) -> None:
        return None


def test_the_first_with_a_device_wins() -> None:
    adapters = [Chip("a"), Chip("b", devices=8), Chip("c", devices=1), Chip("last")]
    choice = choose(adapters, {})
    assert choice.adapter is adapters[1]
    assert "has a device" in choice.reason
    assert not adapters[2].probed


def test_none_is_no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoFrameworkError, match="unset it"):
        choose([Chip("a", devices=1, wish="the program imported it")], {"DITORCH_DEVICE": " None "})
    monkeypatch.setenv("DITORCH_DEVICE", "none")
    found = FrameworkDiagnosis(versions={})
    assert _choice(found) is None
    assert found.ok
    assert found.notes == [str(NoFrameworkError())]


def test_what_is_not_installed_is_not_probed() -> None:
    adapters = [Chip("a", devices=1, installed=False), Chip("last")]
    assert choose(adapters, {}).adapter is adapters[1]
    assert not adapters[0].probed


def test_a_broken_package_is_passed_over_and_remembered() -> None:
    adapters = [Chip("a", broken="no driver"), Chip("b", installed=False), Chip("c", devices=1), Chip("last")]
    choice = choose(adapters, {})
    assert choice.adapter is adapters[2]
    assert [(passed.adapter.name, passed.availability.missing) for passed in choice.passed_over] == [
        ("a", "no driver")
    ]


def test_of_two_frameworks_of_one_device_the_installed_one_is_meant() -> None:
    adapters = [Chip("a", installed=False), Chip("b"), Chip("last")]
    assert choose(adapters, {"DITORCH_DEVICE": "chip"}).adapter is adapters[1]


def test_with_none_the_last_is_taken() -> None:
    adapters = [Chip("a"), Chip("last")]
    assert choose(adapters, {}).adapter is adapters[1]


def test_what_the_program_imported_comes_before_what_the_machine_has() -> None:
    adapters = [Chip("a", devices=8), Chip("last", wish="imported")]
    assert choose(adapters, {}).adapter is adapters[1]
    assert not adapters[0].probed


@pytest.mark.parametrize("value", ["a", "torch_a", "A", " a "])
def test_the_setting_comes_before_everything(value: str) -> None:
    adapters = [Chip("a"), Chip("b", devices=8), Chip("last", wish="imported")]
    choice = choose(adapters, {"DITORCH_DEVICE": value})
    assert choice.adapter is adapters[0]
    assert "DITORCH_DEVICE" in choice.reason


def test_an_unknown_device_is_a_clear_error() -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        choose([Chip("a"), Chip("b")], {"DITORCH_DEVICE": "tpu"})
    message = str(caught.value)
    assert "'tpu'" in message
    assert "a, b" in message
    assert "unset it" in message


@pytest.mark.parametrize(
    ("wanted", "suggestion"),
    [
        ("npv", "npu"),
        ("torch-npu", "torch_npu"),
        ("musaa", "musa"),
        ("cude", "cuda"),
        ("Dipv", "dipu"),
        ("nvidia", ""),
    ],
)
def test_near_names_are_suggested(wanted: str, suggestion: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        choose(environment={"DITORCH_DEVICE": wanted})
    assert (f"Did you mean '{suggestion}'?" in str(caught.value)) == bool(suggestion)
    assert ("Did you mean" in str(caught.value)) == bool(suggestion)


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("2.11.0", True),
        ("2.13.0+cpu", True),
        ("2.12.1+cu128", True),
        ("2.10.0", False),
        ("2.14.0a0", False),
        ("3.0.0", False),
        ("1.13.1", False),
        ("strange", True),
    ],
)
def test_versions_of_torch_that_were_not_tested(version: str, tested: bool) -> None:
    assert (untested_torch(version) == "") == tested
    if not tested:
        assert version in untested_torch(version)


def test_flags_that_are_neither_on_nor_off() -> None:
    assert ignored_settings({"DITORCH_DISABLE_MOCK": "yes", "DIPU_MOCK_CUDA": " FALSE "}) == []
    (text,) = ignored_settings({"DIPU_MOCK_CUDA": "2"})
    assert text == "environment variable DIPU_MOCK_CUDA: expected 1 or 0, got '2'; it is ignored"
    assert mapping_wanted({"DIPU_MOCK_CUDA": "2"}) and not mapping_wanted({"DIPU_MOCK_CUDA": "off"})


def test_labels() -> None:
    chip = Chip("chip")
    assert chip.label() == "torch_chip:2.1.0.post3"
    chip.vendor = lambda: "maker"  # type: ignore[method-assign]
    assert chip.label() == "torch_chip:2.1.0.post3 (maker)"


def test_adapters_are_found_and_the_simulated_device_is_last() -> None:
    names = [adapter.name for adapter in all_adapters()]
    assert {"cuda", "dipu"} <= set(names)
    assert names[-1] == "dipu"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, True),
        ({"DIPU_MOCK_CUDA": "1"}, True),
        ({"DIPU_MOCK_CUDA": "True"}, True),
        ({"DIPU_MOCK_CUDA": "0"}, False),
        ({"DIPU_MOCK_CUDA": "false"}, False),
        ({"DIPU_MOCK_CUDA": "False"}, False),
        ({"DITORCH_DISABLE_MOCK": "1"}, False),
        ({"DITORCH_DISABLE_MOCK": "0"}, True),
        ({"DITORCH_DISABLE_MOCK": "1", "DIPU_MOCK_CUDA": "1"}, False),
    ],
)
def test_switches_of_the_mapping(environment: dict[str, str], wanted: bool) -> None:
    assert mapping_wanted(environment) is wanted
