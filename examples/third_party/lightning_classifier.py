"""lightning: a LightningModule with a validation loop, on `accelerator="gpu"`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """A small network that keeps its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
        self.losses: list[float] = []
        self.validated: list[float] = []
        self.devices: set[str] = set()

    def loss(self, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        self.devices.add(str(inputs.device))
        return F.cross_entropy(self.network(inputs), targets)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.validated.append(self.loss(batch).item())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where that is safe")
    parser.add_argument("--json", type=Path, help="write the losses here")
    options = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    trainer = lightning.Trainer(
        accelerator="cpu" if options.cpu else "gpu",
        devices=1,
        precision="bf16-mixed" if options.bf16 else "32-true",
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=16), DataLoader(data, batch_size=32))
    print(f"lightning on {sorted(model.devices)}: loss {model.losses[0]:.6f} -> {model.losses[-1]:.6f}")
    if options.json:
        result = {
            "losses": [*model.losses, *model.validated],
            "device": ", ".join(sorted(model.devices)),
            "peak_memory": 0 if options.cpu else torch.cuda.max_memory_allocated(),
        }
        options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
