"""Brings a process to the point where LMDeploy's engine can run in it."""

from __future__ import annotations

import functools
import sys

from dlinfer.framework.lmdeploy.places import Place, chosen_place

__all__ = ["start"]


@functools.cache
def start() -> Place:
    """Once in a process: choose the place of tensors and make the names that LMDeploy uses for it."""
    _take_back_names_of_cuda()
    place = chosen_place()
    _map_names_of_cuda(place)
    from dlinfer.vendor.ascend import device_module

    device_module.install(place)
    # These import modules of LMDeploy, which need the names above.
    from dlinfer.framework.lmdeploy_ext import (
        corrections,
        engine_state,
        engines,
        generation,
        older_backends,
        quantised_caches,
        quantised_weights,
    )

    older_backends.install()  # others change what it puts there
    for part in (corrections, engine_state, engines, generation, quantised_caches, quantised_weights):
        part.install()
    from dlinfer.framework.lmdeploy import requests, sampling

    requests.refuse_empty_prompts()
    requests.survive_empty_prompts()
    sampling.follow_seeds()
    return place


def _take_back_names_of_cuda() -> None:
    """Only torch's own names tell what devices there are.

    They may be mapped already: mmengine, which LMDeploy uses for its chat templates, imports torch_dipu where it is
    installed, and that import maps them.
    """
    ditorch = sys.modules.get("ditorch")
    if ditorch is not None:
        ditorch.disable()


def _map_names_of_cuda(place: Place) -> None:
    """LMDeploy writes 'cuda' for its device whatever that is. On cuda there is nothing to do."""
    if place is Place.CPU:
        from dlinfer.framework.lmdeploy_ext import cuda_names_on_cpu

        cuda_names_on_cpu.install()
    elif place is Place.DIPU:
        from dlinfer.framework.lmdeploy_ext import cuda_names_on_dipu

        cuda_names_on_dipu.install()
