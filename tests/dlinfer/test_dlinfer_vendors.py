"""Which vendor serves which operator, how that is chosen, and what one call costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import Tensor

from dicore.settings import SettingError
from dlinfer import ops
from dlinfer.errors import VendorError
from dlinfer.reference import KERNELS
from dlinfer.vendors import Vendor, chosen, dispatch, installed, served_by, use, using

pytestmark = pytest.mark.unit


def _tripled(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return hidden_states * 3


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DLINFER_VENDOR", raising=False)
    use(None)
    yield
    monkeypatch.undo()
    installed.cache_clear()
    use(None)


def _add(vendor: Vendor) -> None:
    installed()[vendor.name] = dispatch.VendorStatus(vendor.name, vendor, vendor.problem())


def _rms() -> float:
    return float(ops.rms_norm(torch.ones(2), torch.ones(2), 0.0)[0])


def test_a_subset_is_served_and_the_rest_falls_to_the_reference() -> None:
    with using(Vendor("three", "1", {"rms_norm": _tripled})):
        assert _rms() == 3.0
        assert ops.linear(torch.ones(1, 2), torch.ones(1, 2)).item() == 2.0
        assert served_by("rms_norm", "cpu").name == "three" and served_by("linear", "cpu").name == "ref"
    assert "three" not in installed()
    with using("ref"):
        assert _rms() == 1.0


def test_priority_decides_and_the_variable_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(Vendor("low", "1", {"rms_norm": _tripled}, priority=1000))
    _add(Vendor("high", "1", {}, priority=2000))
    assert chosen("cpu").name == "high"
    monkeypatch.setenv("DLINFER_VENDOR", "low")
    dispatch.RESOLVED.clear()
    assert chosen("cpu").name == "low" and _rms() == 3.0


def test_a_device_that_the_vendor_does_not_serve_falls_to_the_reference() -> None:
    with using(Vendor("elsewhere", "1", {"rms_norm": _tripled}, devices=("cuda",))):
        assert _rms() == 1.0
        assert chosen("cuda").name == "elsewhere" and chosen("cpu").name == "ref"


def test_a_vendor_without_its_chip_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    installed()["absent"] = dispatch.VendorStatus(
        "absent", Vendor("absent", "1", {}, priority=5000), "there is no such chip"
    )
    assert chosen("cpu").name != "absent"
    monkeypatch.setenv("DLINFER_VENDOR", "absent")
    with pytest.raises(VendorError, match="'absent' cannot be used: there is no such chip"):
        chosen("cpu")


def test_an_unknown_name_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLINFER_VENDOR", "nobody")
    with pytest.raises(VendorError, match=r"DLINFER_VENDOR='nobody' names no installed vendor.*ref"):
        chosen("cpu")


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: "text", "its entry point gives str, expected a dlinfer.vendors.Vendor"),
        (lambda: Vendor("x", "1", {"no_such": _tripled}), "unknown operators: no_such"),
        (lambda: Vendor("x", "1", {}, rules={"rms_norm": ()}), "rules without a kernel: rms_norm"),
    ],
)
def test_a_broken_entry_point_is_a_problem_of_that_vendor_only(
    load: Callable[[], Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Point(EntryPoint):
        def load(self) -> Any:
            return load()

    monkeypatch.setattr(dispatch, "entry_points", lambda group: [Point("broken", "x:y", group)])
    installed.cache_clear()
    assert installed()["broken"].vendor is None and problem in str(installed()["broken"].problem)
    assert _rms() == 1.0


def test_an_entry_point_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point(EntryPoint):
        def load(self) -> Any:
            return Vendor("plugged", "2", {"rms_norm": _tripled}, priority=9000)

    monkeypatch.setattr(dispatch, "entry_points", lambda group: [Point("plugged", "x:y", group)])
    installed.cache_clear()
    use(None)
    assert chosen("cpu").name == "plugged" and _rms() == 3.0


def test_a_wrong_value_of_the_check_variable_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLINFER_CHECK", "yes")
    with using("ref"), pytest.raises(SettingError, match="DLINFER_CHECK: expected 0 or 1, got 'yes'"):
        _rms()


def test_a_call_costs_little_beside_its_kernel() -> None:
    """Dispatch, checks and choice together; the bound is wide because machines that test are busy."""
    hidden, weight = torch.randn(8), torch.ones(8)
    plain = KERNELS["rms_norm"]

    def spent(call: Callable[..., Tensor]) -> float:
        begin = time.process_time()
        for _ in range(2000):
            call(hidden, weight, 1e-6)
        return (time.process_time() - begin) / 2000 * 1e6

    with torch.inference_mode():
        for _ in range(2):
            spent(plain), spent(ops.rms_norm)
        extra = min(spent(ops.rms_norm) for _ in range(5)) - min(spent(plain) for _ in range(5))
    assert extra < 40, f"{extra:.1f} us"


def test_choosing_for_a_while_disturbs_no_other_thread() -> None:
    stop, errors = threading.Event(), []

    def serve() -> None:
        hidden, weight = torch.randn(2, 8), torch.ones(8)
        while not stop.is_set():
            try:
                ops.rms_norm(hidden, weight, 1e-6)
            except Exception as error:  # whatever it is, it belongs to nobody here
                errors.append(error)
                return

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        with using("ref"), using(Vendor(name="tripled", version="1", kernels={"rms_norm": _tripled})):
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and "tripled" not in installed()
