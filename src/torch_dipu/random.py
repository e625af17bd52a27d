"""Random numbers: one generator for each device."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_dipu import _C
from torch_dipu.device_index import Device, device_index


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device, by index.

    In the shape of torch.cuda's tuple, but made when it is read: counting the devices needs the vendor.
    """

    def __len__(self) -> int:
        return _C.device_count()

    def __getitem__(self, index: Any) -> Any:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return tuple(_C.default_generator(i) for i in chosen)
        return _C.default_generator(chosen)

    def __repr__(self) -> str:
        return repr(self[:])


default_generators = _DefaultGenerators()


def _reduce(generator: torch.Generator) -> Any:
    if generator.device.type != "dipu":
        return generator.__reduce__()
    # torch's own would ask for an offset, which this engine does not count.
    return torch.Generator, (generator.device,), (generator.initial_seed(), None, generator.get_state())


def register_copies() -> None:
    """Let generators of the device be copied and pickled; their class is torch's own."""
    copyreg.pickle(type(torch.Generator()), _reduce)


def _generator(device: Device) -> torch.Generator:
    return _C.default_generator(device_index(device))


def manual_seed(seed: int) -> None:
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a random number."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds all devices with one random number."""
    chosen: int | None = None
    for generator in default_generators:
        if chosen is None:
            chosen = generator.seed()
        else:
            generator.manual_seed(chosen)


def initial_seed() -> int:
    return _generator(None).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)
