"""Two training steps and a generation, as one writes them for CUDA: `.cuda()`, `device="cuda"`, `torch.autocast("cuda")`.

Every script of this folder describes a model and hands it to `main`. Weights and data are drawn on the CPU from a
fixed seed and moved afterwards, so that every device starts from the same numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

SEED = 1
STEPS = 2
ROWS = 2

adamw = partial(torch.optim.AdamW, lr=1e-3)

Sample = dict[str, Tensor]

PROMPT: Sample = {"input_ids": torch.tensor([[5, 9, 17, 33]])}


@dataclass
class Experiment:
    """A model with something to learn: `samples` are single rows, `loss` is what a batch of them costs."""

    model: nn.Module
    samples: list[Sample]
    loss: Callable[[nn.Module, Sample], Tensor]
    generate: Callable[[nn.Module, str], Tensor] | None = None
    """Made with the trained model on the device of that name: tokens, or a picture."""
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = adamw
    rows: int = ROWS
    """Of a batch; there are samples for STEPS batches."""


Build = Callable[[], Experiment]


def own_loss(model: nn.Module, batch: Sample) -> Tensor:
    """The loss that models of transformers compute from the labels in the batch."""
    loss: Tensor = model(**batch).loss
    return loss


def token_samples(vocabulary: int, length: int = 24) -> list[Sample]:
    """Random text: the model has to learn it by heart."""
    rows = torch.randint(3, vocabulary, (STEPS * ROWS, length))
    return [{"input_ids": row, "labels": row} for row in rows]


def image_samples(classes: int, size: int, rows: int = ROWS) -> list[Sample]:
    """Random pictures with random labels."""
    images, labels = torch.randn(STEPS * rows, 3, size, size), torch.randint(classes, (STEPS * rows,))
    return [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]


def greedy(model: Any, device: str, prompt: Sample | None = None, count: int = 12) -> Tensor:
    """The most likely continuation of a short prompt, by the generation loop of transformers."""
    inputs = {name: value.to(device) for name, value in (prompt or PROMPT).items()}
    with torch.no_grad():
        tokens: Tensor = model.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return tokens[0, -count:]


def options_for(description: str | None, arguments: Sequence[str] | None, *more: str) -> argparse.Namespace:
    """The command line that all scripts have; `more` names a list argument in front."""
    parser = argparse.ArgumentParser(description=description)
    for name in more:
        parser.add_argument(name, nargs="*")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU instead of on cuda")
    parser.add_argument("--bf16", action="store_true", help="compute under autocast in bfloat16")
    parser.add_argument("--compile", metavar="BACKEND", help="compile the model with this backend")
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute activations in the backward pass"
    )
    parser.add_argument("--reproducible", action="store_true", help="deterministic algorithms, no TF32")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write losses, tokens and digests here")
    return parser.parse_args(arguments)


def make_reproducible() -> None:
    """The same bits in every run, and float32 that is float32."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def digests(model: nn.Module) -> dict[str, str]:
    """A fingerprint of the bits of every parameter and buffer."""
    found = {}
    for name, value in model.state_dict().items():
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found[name] = hashlib.sha256(data).hexdigest()[:16]
    return found


def train(experiment: Experiment, options: argparse.Namespace) -> list[float]:
    """The loss before each step and after the last one."""
    model: Any = experiment.model.train() if options.cpu else experiment.model.train().cuda()
    if options.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    called: Any = torch.compile(model, backend=options.compile) if options.compile else model
    optimizer = experiment.optimizer(model.parameters())
    samples: Any = experiment.samples  # a list serves as a dataset
    loader: DataLoader[Sample] = DataLoader(samples, batch_size=experiment.rows, pin_memory=not options.cpu)
    device_type = "cpu" if options.cpu else "cuda"

    def loss_of(batch: Sample) -> Tensor:
        if not options.cpu:
            batch = {name: value.cuda(non_blocking=True) for name, value in batch.items()}
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=options.bf16):
            return experiment.loss(called, batch)

    losses = []
    for batch in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(loss_of(batch).item())
    return losses


def run(build: Build, options: argparse.Namespace) -> dict[str, Any]:
    """Train and generate; everything that two devices can be compared by."""
    torch.manual_seed(SEED)
    experiment = build()
    before = digests(experiment.model)
    if not options.cpu:
        torch.cuda.reset_peak_memory_stats()
    losses = train(experiment, options)
    after = digests(experiment.model)
    generated = None
    if experiment.generate is not None:
        generated = experiment.generate(experiment.model.eval(), "cpu" if options.cpu else "cuda").cpu()
    return {
        "device": str(next(experiment.model.parameters()).device),
        "parameters": sum(parameter.numel() for parameter in experiment.model.parameters()),
        "losses": losses,
        "generated": None if generated is None else generated.flatten().tolist(),
        "digests": after,
        "changed": sum(before[name] != digest for name, digest in after.items()),
        "peak_memory": 0 if options.cpu else torch.cuda.max_memory_allocated(),
    }


def show(name: str, result: dict[str, Any]) -> None:
    """A few lines for people."""
    losses = " -> ".join(f"{loss:.6f}" for loss in result["losses"])
    print(f"{name} on {result['device']}: {result['parameters']:,} parameters, loss {losses}")
    if result["generated"] is not None:
        values = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in result["generated"]]
        print(f"  generated: {' '.join(values[:12])}{' ...' if len(values) > 12 else ''}")


def write(path: Path, results: dict[str, Any]) -> None:
    """Results by model, with the versions that made them."""
    transformers = sys.modules.get("transformers")
    versions = {"torch": torch.__version__, "transformers": getattr(transformers, "__version__", "")}
    path.write_text(json.dumps({"versions": versions, "models": results}) + "\n")


def main(build: Build, arguments: Sequence[str] | None = None) -> None:
    """Run the script's model as the command line says."""
    options = options_for(sys.modules[build.__module__].__doc__, arguments)
    if options.reproducible:
        make_reproducible()
    name = Path(sys.argv[0]).stem
    result = run(build, options)
    show(name, result)
    if options.json:
        write(options.json, {name: result})
