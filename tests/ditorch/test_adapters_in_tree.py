"""Devices that torch brings itself: xpu and mps on modules that stand for theirs, the makers of cuda cards by name."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from _ditorch.adapters import all_adapters
from _ditorch.adapters.base import DeviceView, names_filled_in
from _ditorch.adapters.cuda import CudaAdapter, maker_of
from _ditorch.adapters.in_tree import InTreeAdapter
from _ditorch.adapters.mps import MpsAdapter
from _ditorch.adapters.xpu import XpuAdapter
from _ditorch.mapping import Mapping, NotMapped

pytestmark = pytest.mark.unit


class Module(types.ModuleType):
    """A device module that keeps its calls; `answers` is what each function returns."""

    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        self.calls: list[tuple[Any, ...]] = []
        for function, answer in answers.items():
            setattr(self, function, self._function(function, answer))

    def _function(self, name: str, answer: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, *map(str, args), *map(str, kwargs.values())))
            return answer

        function.__name__ = name
        return function


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch):
    """Map cuda onto an adapter's device for one test."""
    made: list[Mapping] = []

    def apply(adapter: InTreeAdapter, module: Module) -> None:
        monkeypatch.setattr(torch, adapter.device_type, module)
        monkeypatch.setattr(type(adapter), "built", lambda self: True)
        target = adapter.target()
        assert target is not None
        made.append(Mapping(target))
        made[-1].enable()

    yield apply
    for mapping in made:
        mapping.disable()


def _xpu() -> Module:
    # On a torch without xpu its classes are there and their constructors raise; functions are replaced.
    names = {name: None for name in torch.xpu.__all__ if callable(getattr(torch.xpu, name))}
    answers = {"device_count": 3, "is_available": True, "current_device": 2, "memory_allocated": 4096}
    module = Module("torch.xpu", names | answers)
    for name in ("device", "Stream", "Event", "StreamContext"):
        setattr(module, name, getattr(torch.xpu, name))
    # Newer than the oldest torch.
    module.XPUGraph = type("XPUGraph", (), {})
    return module


def test_xpu(mapped) -> None:
    module = _xpu()
    mapped(XpuAdapter(), module)
    assert (
        torch.cuda.device_count(),
        torch.cuda.current_device(),
        torch.cuda.memory_allocated("cuda:1"),
    ) == (
        3,
        2,
        4096,
    )
    torch.cuda.set_device(torch.device("cuda:1"))
    torch.cuda.manual_seed_all(5)
    assert module.calls[-3:] == [
        ("memory_allocated", "xpu:1"),
        ("set_device", "xpu:1"),
        ("manual_seed_all", "5"),
    ]
    assert str(torch.device("cuda", 2)) == "xpu:2"
    assert torch.cuda.CUDAGraph is module.XPUGraph
    assert XpuAdapter().label() == f"torch:{torch.__version__} (xpu)"


def test_what_xpu_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = XpuAdapter()
    monkeypatch.setattr(torch, "xpu", _xpu())
    monkeypatch.setattr(torch.version, "xpu", None)
    assert "was built without xpu" in adapter.availability().missing
    with pytest.raises(ImportError, match="was built without xpu"):
        adapter.load()
    monkeypatch.setattr(torch.version, "xpu", "20250001")
    assert adapter.availability().devices == 3
    monkeypatch.setattr(torch, "xpu", Module("torch.xpu", {"device_count": 0}))
    assert "ZE_AFFINITY_MASK" in adapter.availability().advice
    monkeypatch.setattr(torch, "xpu", Module("torch.xpu", {}))
    found = adapter.availability()
    assert (found.devices, found.broken) == (0, True)


def test_mps(mapped) -> None:
    """torch.mps has one device and no functions that choose among several; those are added."""
    module = Module(
        "torch.mps",
        {
            "device_count": 1, "is_available": True, "synchronize": None, "manual_seed": None, "seed": None,
            "current_allocated_memory": 10, "driver_allocated_memory": 30, "recommended_max_memory": 100,
            "get_rng_state": torch.ones(3), "set_rng_state": None, "empty_cache": None,
        },
    )  # fmt: skip
    mapped(MpsAdapter(), module)
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    torch.cuda.set_device("cuda:0")
    torch.cuda.synchronize("cuda")
    torch.cuda.manual_seed_all(5)
    assert module.calls[-2:] == [("synchronize",), ("manual_seed", "5")]
    assert torch.cuda.mem_get_info() == (70, 100)
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (10, 30)
    assert torch.equal(torch.cuda.get_rng_state_all()[0], torch.ones(3))
    assert torch.cuda.get_device_properties(0).total_memory == 100
    assert torch.cuda.get_device_capability() == (0, 0)
    with torch.cuda.device("cuda:0") as inside:
        assert inside.idx == 0
    with pytest.raises(RuntimeError, match=r"device index 1 does not exist: there is one device, mps:0"):
        torch.cuda.set_device(1)
    with pytest.raises(NotMapped, match=r"torch\.cuda\.cudart is not available on 'mps'"):
        torch.cuda.cudart()


@pytest.mark.parametrize(
    ("card", "maker"),
    [
        ("NVIDIA H200", "NVIDIA"),
        ("Tesla V100-SXM2-32GB", "NVIDIA"),
        ("MetaX C500", "MetaX"),
        ("Iluvatar BI-V150", "Iluvatar"),
        ("PPU-ZW810E", "T-Head PPU"),
        ("K100_AI", "Hygon"),
        ("BW1000", "Hygon"),
        ("AMD Instinct MI300X", "AMD"),
        ("Abacus 1", ""),
    ],
)
def test_whose_card_it_is(card: str, maker: str) -> None:
    assert maker_of(card) == maker


@pytest.mark.parametrize(
    ("version", "maker"),
    [
        ("2.6.0+metax2.33.0.5", "MetaX"),
        ("2.7.1+corex.4.4.0", "Iluvatar"),
        ("2.6.0+ppu1.5.2", "T-Head PPU"),
        ("2.4.1+das.opt1.dtk2504", "Hygon"),
    ],
)
def test_whose_build_of_torch_it_is(version: str, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert CudaAdapter().label() == f"torch:{version} ({maker})"


def test_the_cards_name_is_asked_only_of_a_started_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking starts the driver, and a process that has started it cannot fork."""
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: asked.append(1) or "MetaX C500")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    CudaAdapter().vendor()
    assert asked == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert (CudaAdapter().vendor(), asked) == ("MetaX", [1])


def test_a_view_adds_and_renames_and_leaves_the_module_alone() -> None:
    module = Module(
        "torch.chip", {"get_device_capability": None, "_lazy_init": "started", "ChipGraph": "graph"}
    )
    module.CHIPPluggableAllocator = "allocator"
    before = set(vars(module))
    view = DeviceView(module, "chip", {"CUDAGraph": "ChipGraph"}, names_filled_in(module))
    assert (view.init(), view.CUDAGraph(), view.get_device_capability()) == ("started", "graph", (0, 0))
    assert view.CUDAPluggableAllocator == "allocator"
    assert view.is_bf16_supported() is False
    assert not hasattr(view, "synchronize")
    assert {"CUDAGraph", "init", "ChipGraph"} <= set(dir(view))
    assert set(vars(module)) == before


def test_every_adapter_states_its_facts() -> None:
    adapters = all_adapters()
    assert [adapter.name for adapter in adapters] == [
        "npu",
        "mlu",
        "musa",
        "supa",
        "xpu",
        "cuda",
        "mps",
        "dipu",
    ]
    groups = {adapter.name: adapter.process_group for adapter in adapters}
    assert groups == {
        "npu": "hccl", "mlu": "cncl", "musa": "mccl", "supa": "sccl", "xpu": "xccl", "cuda": "nccl", "mps": None,
        "dipu": "dicl",
    }  # fmt: skip
    names = [name for adapter in adapters for name in adapter.names()]
    assert len(names) == len(set(names)), "two adapters answer to one name"
    assert all(adapter.how_to_install for adapter in adapters)
    assert names == [name.lower() for name in names], "the setting is read in lower case"
