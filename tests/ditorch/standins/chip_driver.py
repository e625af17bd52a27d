"""A chip for the stand-ins of vendors' packages: the library and the simulated devices of dipu, under another name.

Nothing of torch_dipu's Python side is registered. Tensors really live on the renamed device and every operator
runs, so a stand-in differs from the vendor's package only in what computes. A stand-in names the functions that
the vendor documents; this module gives them their behaviour, and keeps a list of the calls with their arguments.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
from typing import Any

import torch

calls: list[tuple[Any, ...]] = []
"""Every call of a function of the device module: its name, then its arguments."""


def _open_library() -> tuple[Any, Any]:
    """torch_dipu's compiled part without its package, which would register 'dipu'."""
    spec = importlib.util.find_spec("torch_dipu")
    assert spec is not None
    package = types.ModuleType("torch_dipu")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["torch_dipu"] = package
    try:
        library = importlib.import_module("torch_dipu._C")
        importlib.import_module("torch_dipu.shutdown").register()
        distributed = importlib.import_module("torch_dipu.distributed")
    finally:
        del sys.modules["torch_dipu"]
    from diopi.vendors import choose

    library.choose_vendor(str(choose().library), "")
    distributed.bind()
    return library, distributed.create


def fail_if_told(package: str) -> None:
    """`STANDIN_BROKEN=torch_npu` makes the package break as one without its driver's libraries does."""
    if package in os.environ.get("STANDIN_BROKEN", "").split(","):
        raise ImportError("libdriver.so: cannot open shared object file: No such file or directory")
    if package in os.environ.get("STANDIN_CRASH", "").split(","):
        os.abort()


class Chip:
    """One vendor's device: `name` for torch.device, `backend` for torch.distributed, `visible` its variable."""

    def __init__(self, name: str, backend: str, visible: str, *, maker: str) -> None:
        self.name, self.visible, self.maker = name, visible, maker
        self.library, create = _open_library()
        self._initialized = False
        self._bad_fork = False
        os.register_at_fork(after_in_child=self._after_fork)
        self._register_backend(backend, create)

    def register(self, module: types.ModuleType) -> None:
        """Take torch's place for such a device; the order is that of the vendors' packages."""
        if torch._C._get_privateuse1_backend_name() != self.name:
            torch.utils.rename_privateuse1_backend(self.name)
        torch._register_device_module(self.name, module)
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        self.library.register_direct_fallbacks()

    def offer(self, module: types.ModuleType, names: str) -> None:
        """Give a device module the functions of this list, and no others."""
        for name in names.split():
            value = getattr(self, name)
            setattr(module, name, _recorded(value) if isinstance(value, types.MethodType) else value)

    # -- devices

    def is_available(self) -> bool:
        return self.device_count() > 0

    def device_count(self) -> int:
        count = int(os.environ.get(f"STANDIN_DEVICES_{self.name}", self.library.device_count()))
        shown = os.environ.get(self.visible)
        return count if shown is None else min(count, len([number for number in shown.split(",") if number]))

    def init(self) -> None:
        self._lazy_init()

    def is_initialized(self) -> bool:
        return self._initialized and not self._bad_fork

    def _lazy_init(self) -> None:
        if self._bad_fork:
            name = self.name.upper()
            raise RuntimeError(
                f"Cannot re-initialize {name} in forked subprocess. To use {name} with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        self._initialized = True

    def _is_in_bad_fork(self) -> bool:
        return self._bad_fork

    def _after_fork(self) -> None:
        self._bad_fork = self._initialized

    def index(self, device: Any) -> int:
        """As the vendors read a device: a foreign type is an error, so an untranslated 'cuda' shows."""
        self._lazy_init()
        if device is None:
            return self.library.current_device()
        if isinstance(device, int):
            return device
        named = torch.device(device)
        if named.type != self.name:
            raise ValueError(f"Expected a {self.name} device, but got: {device}")
        return self.library.current_device() if named.index is None else named.index

    def current_device(self) -> int:
        self._lazy_init()
        return self.library.current_device()

    def set_device(self, device: Any) -> None:
        index = self.index(device)
        if index >= self.device_count():
            raise RuntimeError(f"invalid device ordinal {index}: there are {self.device_count()}")
        self.library.set_device(index)

    def synchronize(self, device: Any = None) -> None:
        self.library.synchronize(self.index(device))

    def get_device_properties(self, device: Any = None) -> types.SimpleNamespace:
        values = self.library.properties(self.index(device)) | {"name": f"{self.maker} {self.index(device)}"}
        return types.SimpleNamespace(**values)

    def get_device_name(self, device: Any = None) -> str:
        return self.get_device_properties(device).name

    def get_device_capability(self, device: Any = None) -> tuple[int, int] | None:
        properties = self.get_device_properties(device)
        return properties.major, properties.minor

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        return self.index(device) != self.index(peer_device)

    @property
    def device(self) -> type:
        chip = self

        class device:
            def __init__(self, device: Any) -> None:
                self.idx = chip.index(device)
                self.prev_idx = -1

            def __enter__(self) -> None:
                self.prev_idx = chip.library.exchange_device(self.idx)

            def __exit__(self, *_: object) -> None:
                chip.library.set_device(self.prev_idx)

        return device

    # -- what it can do

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self) -> bool:
        return True

    # -- streams

    @property
    def Stream(self) -> type:
        chip = self

        class Stream:
            def __new__(cls, device: Any = None, priority: int = 0) -> torch.Stream:  # type: ignore[misc]
                return torch.Stream(device=torch.device(chip.name, chip.index(device)), priority=priority)

        return Stream

    @property
    def Event(self) -> type:
        chip = self

        class Event:
            def __new__(cls, enable_timing: bool = False, **_: Any) -> torch.Event:  # type: ignore[misc]
                return torch.Event(device=torch.device(chip.name), enable_timing=enable_timing)

        return Event

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(torch.device(self.name, self.index(device)))

    def default_stream(self, device: Any = None) -> torch.Stream:
        now = self.current_stream(device)
        return torch.Stream(stream_id=0, device_index=now.device_index, device_type=now.device_type)

    def set_stream(self, stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    @property
    def StreamContext(self) -> type:
        chip = self

        class StreamContext:
            def __init__(self, stream: torch.Stream) -> None:
                self.stream = stream

            def __enter__(self) -> None:
                self._before = chip.current_stream(self.stream.device)
                chip.set_stream(self.stream)

            def __exit__(self, *_: object) -> None:
                chip.set_stream(self._before)

        return StreamContext

    def stream(self, stream: torch.Stream) -> Any:
        return self.StreamContext(stream)

    # -- memory

    def empty_cache(self) -> None:
        torch.accelerator.empty_cache()

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        return dict(torch.accelerator.memory_stats(self.index(device)))

    def memory_allocated(self, device: Any = None) -> int:
        return torch.accelerator.memory_allocated(self.index(device))

    def max_memory_allocated(self, device: Any = None) -> int:
        return torch.accelerator.max_memory_allocated(self.index(device))

    def memory_reserved(self, device: Any = None) -> int:
        return torch.accelerator.memory_reserved(self.index(device))

    def max_memory_reserved(self, device: Any = None) -> int:
        return torch.accelerator.max_memory_reserved(self.index(device))

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        torch.accelerator.reset_peak_memory_stats(self.index(device))

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return torch.accelerator.get_memory_info(self.index(device))

    # -- random numbers

    def _generators(self) -> list[torch.Generator]:
        return [self.library.default_generator(index) for index in range(self.library.device_count())]

    def manual_seed(self, seed: int) -> None:
        self._generators()[self.current_device()].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self._generators():
            generator.manual_seed(seed)

    def initial_seed(self) -> int:
        return self._generators()[self.current_device()].initial_seed()

    def seed(self) -> None:
        self._generators()[self.current_device()].seed()

    def seed_all(self) -> None:
        self.manual_seed_all(torch.seed())

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self._generators()[self.index(device)].get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        self._generators()[self.index(device)].set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators()]

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators(), new_states, strict=True):
            generator.set_state(state)

    # -- other processes

    def _register_backend(self, backend: str, create: Any) -> None:
        def created(options: Any, backend_options: Any) -> Any:
            calls.append(("process group", backend, options.group_rank, options.group_size))
            return create(options, backend_options)

        torch.distributed.Backend.register_backend(backend, created, extended_api=True, devices=[self.name])


def _recorded(method: types.MethodType) -> Any:
    """A plain function, as a vendor's is: the signature of the method, and a line in `calls`."""

    @functools.wraps(method)
    def function(*args: Any, **kwargs: Any) -> Any:
        calls.append((method.__name__, *args, *kwargs.values()))
        return method(*args, **kwargs)

    return function
