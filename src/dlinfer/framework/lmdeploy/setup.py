"""Brings a process to the point where LMDeploy's engine can run in it."""

from __future__ import annotations

import functools
import sys
from typing import Any

from dlinfer.framework.lmdeploy.devices import (
    EngineDevice,
    chosen_device,
    install_device_module,
    map_cuda_to_dipu,
    serves,
)
from dlinfer.framework.lmdeploy.replacing import around


@functools.cache
def set_up() -> EngineDevice:
    """Once in a process: choose the device of tensors and make the names that LMDeploy uses for it."""
    _take_back_names_of_cuda()
    device = chosen_device()
    _map_names_of_cuda(device)
    install_device_module(device)
    # These import modules of LMDeploy, which need the names above.
    from dlinfer.framework.lmdeploy import corrections, generation, quantisation

    corrections.install()
    quantisation.install()
    generation.install()
    _refuse_several_processes()
    _refuse_settings()
    return device


def _take_back_names_of_cuda() -> None:
    """Only torch's own names tell what devices there are.

    They may be mapped already: mmengine, which LMDeploy uses for its chat templates, imports torch_dipu where it is
    installed, and that import maps them.
    """
    session = sys.modules.get("_ditorch.session")
    if session is not None:  # whoever mapped them has it
        session.of_process().disable()


def _map_names_of_cuda(device: EngineDevice) -> None:
    """LMDeploy writes 'cuda' for its device whatever that is. On cuda there is nothing to do."""
    if device is EngineDevice.CPU:
        from dlinfer.framework.lmdeploy import cuda_on_cpu

        cuda_on_cpu.install()
    elif device is EngineDevice.DIPU:
        map_cuda_to_dipu()


# ---- settings of engines that cannot be followed are refused with the cause ----


def _refuse_several_processes() -> None:
    """More than one rank needs a process for each, with collectives between devices, which nothing here starts.

    LMDeploy would look for them in a cluster and wait, or fail at a shape far from the cause.
    """
    from lmdeploy.pytorch.check_env.dist import DistChecker

    @around(DistChecker, "check")
    def check(original: Any, self: Any) -> None:
        if serves(self.device_type) and self.world_size > 1:
            self.log_and_exit(
                mod_name="dlinfer",
                message=f"tp={self.tp}, dp={self.dp}, ep={self.ep} ask for {self.world_size} processes, and dlinfer "
                "serves LMDeploy in one. Use tp=1, dp=1 and ep=1; a server on each device gives more throughput.",
            )
        original(self)


def _refuse_settings() -> None:
    """What would end the engine at its first step, or be left out without a word."""
    from lmdeploy.pytorch.engine.engine_checker import EngineChecker

    @around(EngineChecker, "check")
    def check(original: Any, self: Any) -> None:
        config = self.engine_config
        problem = _setting_problem(config) if serves(config.device_type) else ""
        if problem:
            self.log_and_exit(mod_name="dlinfer", message=problem)
        original(self)


def _setting_problem(config: Any) -> str:
    if config.model_format == "fp8":
        return (
            "model_format='fp8' asks LMDeploy to quantise weights while it loads them, for which it has no layers here. "
            "Leave model_format out, or serve a checkpoint of smooth_quant with float8_e4m3fn."
        )
    from dlinfer.framework.lmdeploy.quantisation import policy_problem

    return policy_problem(config.quant_policy)
