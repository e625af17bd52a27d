"""Brings a process to the point where LMDeploy's engine can run in it."""

from __future__ import annotations

import functools

from dlinfer.framework.lmdeploy_ext.places import Place, chosen_place

__all__ = ["start"]


@functools.cache
def start() -> Place:
    """Once in a process: choose the place of tensors and make the names that LMDeploy uses for it."""
    place = chosen_place()
    _map_names_of_cuda(place)
    from dlinfer.vendor.ascend import device_module

    device_module.install(place)
    return place


def _map_names_of_cuda(place: Place) -> None:
    """LMDeploy writes 'cuda' for its device whatever that is. On cuda there is nothing to do."""
    if place is Place.CPU:
        from dlinfer.framework.lmdeploy_ext import cuda_names_on_cpu

        cuda_names_on_cpu.install()
    elif place is Place.DIPU:
        from dlinfer.framework.lmdeploy_ext import cuda_names_on_dipu

        cuda_names_on_dipu.install()
