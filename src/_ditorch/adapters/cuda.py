"""Devices that torch itself calls cuda: NVIDIA's, and others whose builds of torch present them so."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from _ditorch.adapters.in_tree import InTreeAdapter

__all__ = ["CudaAdapter", "maker_of"]

# Makers write themselves into the local part of their builds' version, and into the names of their cards.
_BUILDS = {"metax": "MetaX", "maca": "MetaX", "corex": "Iluvatar", "ppu": "T-Head PPU", "das": "Hygon"}
_CARDS = {
    r"NVIDIA|GeForce|Tesla|Quadro": "NVIDIA",
    r"MetaX|MXC\d": "MetaX",
    r"Iluvatar|\b(BI|MR)-V\d": "Iluvatar",
    r"\bPPU\b": "T-Head PPU",
    r"Hygon|\bDCU\b|\b[KZ]100|\bBW\d{3}": "Hygon",
    r"AMD|Radeon|Instinct": "AMD",
}
_DRIVER = Path("/proc/driver/nvidia/version")


def maker_of(card: str) -> str:
    """Whose card has this name; empty where the name does not tell."""
    return next((maker for pattern, maker in _CARDS.items() if re.search(pattern, card, re.I)), "")


class CudaAdapter(InTreeAdapter):
    name = device_type = "cuda"
    priority = 50
    process_group = "nccl"
    visible_devices = "CUDA_VISIBLE_DEVICES"
    tools = "the driver (nvidia-smi, or the tool of the card's maker)"
    how_to_install = "install a torch build for cuda"

    def built(self) -> bool:
        return torch.backends.cuda.is_built()

    def vendor(self) -> str:
        if torch.cuda.is_initialized():
            return maker_of(torch.cuda.get_device_name())
        # Asking for the card's name would start the driver, and a process that has started it cannot fork.
        local = torch.__version__.partition("+")[2].lower()
        build = next((maker for mark, maker in _BUILDS.items() if local.startswith(mark)), "")
        return build or ("NVIDIA" if torch.version.cuda and _DRIVER.exists() else "")

    def target(self) -> None:
        return None
