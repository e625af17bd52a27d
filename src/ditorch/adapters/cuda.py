"""Devices that torch itself calls cuda: NVIDIA's, and others whose builds of torch present them so."""

from __future__ import annotations

import torch

from ditorch.adapters.base import Adapter, Availability

__all__ = ["ADAPTER"]


class CudaAdapter(Adapter):
    name = "cuda"
    package = "torch"
    device_type = "cuda"
    priority = 50

    def availability(self) -> Availability:
        if not torch.backends.cuda.is_built():
            return Availability(
                devices=0,
                missing=f"this torch ({torch.__version__}) was built without cuda",
                advice="install a torch build for cuda if this machine has such a card",
            )
        count = torch.cuda.device_count()
        if count:
            return Availability(devices=count)
        return Availability(
            devices=0,
            missing="torch was built for cuda but finds no device",
            advice="check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES",
        )

    def load(self) -> None:
        if not torch.backends.cuda.is_built():
            raise ImportError(self.availability().missing)

    def version(self) -> str:
        return torch.__version__

    def target(self) -> None:
        return None


ADAPTER = CudaAdapter()
