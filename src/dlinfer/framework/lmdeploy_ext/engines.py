"""Settings of LMDeploy's engines that cannot be followed are refused with the cause."""

from __future__ import annotations

import functools
from typing import Any

from dlinfer.framework.lmdeploy_ext import quantised_caches
from dlinfer.framework.lmdeploy_ext.device_types import serves

__all__ = ["install"]


@functools.cache
def install() -> None:
    """Once in a process."""
    _refuse_several_processes()
    _refuse_settings()


def _refuse_several_processes() -> None:
    """More than one rank needs a process for each, with collectives between devices, which nothing here starts.

    LMDeploy would look for them in a cluster and wait, or fail at a shape far from the cause.
    """
    from lmdeploy.pytorch.check_env.dist import DistChecker

    original = DistChecker.check

    @functools.wraps(original)
    def check(self: Any) -> None:
        if serves(self.device_type) and self.world_size > 1:
            self.log_and_exit(
                mod_name="dlinfer",
                message=f"tp={self.tp}, dp={self.dp}, ep={self.ep} ask for {self.world_size} processes, and dlinfer "
                "serves LMDeploy in one. Use tp=1, dp=1 and ep=1; a server on each device gives more throughput.",
            )
        original(self)

    DistChecker.check = check


def _refuse_settings() -> None:
    """What would end the engine at its first step, or be left out without a word."""
    from lmdeploy.pytorch.engine.engine_checker import EngineChecker

    original = EngineChecker.check

    @functools.wraps(original)
    def check(self: Any) -> None:
        config = self.engine_config
        problem = _setting_problem(config) if serves(config.device_type) else ""
        if problem:
            self.log_and_exit(mod_name="dlinfer", message=problem)
        original(self)

    EngineChecker.check = check


def _setting_problem(config: Any) -> str:
    if config.model_format == "fp8":
        return (
            "model_format='fp8' asks LMDeploy to quantise weights while it loads them, for which it has no layers here. "
            "Leave model_format out, or serve a checkpoint of smooth_quant with float8_e4m3fn."
        )
    return quantised_caches.policy_problem(config.quant_policy)
