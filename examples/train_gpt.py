"""Train a small character GPT on a device and, from the same weights and batches, on the CPU.

The two losses stand side by side while it runs; then come text written by the device's model, throughput,
memory and where the time went. `--device cpu` or `--device cuda` run the same code without the device `dipu`.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from torch import Tensor

from gpt import CORPUS, GPT, CharacterText, GPTConfig
from profile_report import operator_table

BATCH = 16
CONTEXT = 48
LEARNING_RATE = 4e-3
PROMPT = "The keeper"
ROWS = 12
WARM_UP = 3
PROFILED_STEPS = 5


def device_module(device: torch.device) -> Any:
    """`torch.dipu`, `torch.cuda`, ...; None for the CPU, which needs neither synchronising nor accounting."""
    return None if device.type == "cpu" else getattr(torch, device.type, None)


def open_device(name: str) -> torch.device:
    """Turn a name into a device that can hold a tensor, or stop with a message that says what to do."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, AttributeError) as error:
        typer.echo(f"error: device {name!r} cannot be used: {str(error).splitlines()[0]}", err=True)
        typer.echo("  expected: a device of this torch with its driver or package installed", err=True)
        typer.echo(
            "  do: `make demo` builds and installs 'dipu'; `dipu doctor` says what is missing", err=True
        )
        raise typer.Exit(2) from error
    return device


@dataclass
class Trainer:
    """A model on one device with its optimiser; remembers the loss and the duration of every step."""

    model: GPT
    device: torch.device
    steps: int
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), foreach=True
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)

    def rate(self, step: int) -> float:
        """Up during the first tenth of the steps, then down in a straight line to a tenth of the rate."""
        warm_up = max(1, self.steps // 10)
        if step < warm_up:
            return (step + 1) / warm_up
        return 1 - 0.9 * min(1.0, (step - warm_up) / max(1, self.steps - warm_up))

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        started = time.perf_counter()
        tokens, targets = tokens.to(self.device), targets.to(self.device)
        loss = self.model.loss(tokens, targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.synchronize()
        self.seconds.append(time.perf_counter() - started)

    def synchronize(self) -> None:
        module = device_module(self.device)
        if module is not None:
            module.synchronize()

    def write(self, text: CharacterText, count: int, seed: int) -> str:
        """Generate from the fixed prompt. Where device and CPU draw alike, equal weights write equal text."""
        torch.manual_seed(seed)
        start = text.encode(PROMPT)[None].to(self.device)
        return text.decode(self.model.generate(start, count, temperature=0.6)[0].cpu())

    def tokens_per_second(self) -> float:
        settled = self.seconds[WARM_UP:] or self.seconds
        return BATCH * CONTEXT / statistics.median(settled)


def loss_table(trainers: list[Trainer], steps: int) -> Table:
    """Evenly spaced steps so far, the newest one included."""
    table = Table(title="Loss of the same model, step by step", expand=True)
    table.add_column("step", justify="right")
    for trainer in trainers:
        table.add_column(f"loss {trainer.device}", justify="right")
    if len(trainers) > 1:
        table.add_column("difference", justify="right")
    done = len(trainers[-1].losses)
    shown = sorted({round(i * (steps - 1) / (ROWS - 1)) for i in range(ROWS)})
    for index in [i for i in shown if i < done] + ([done - 1] if done and done - 1 not in shown else []):
        losses = [trainer.losses[index] for trainer in trainers]
        cells = [str(index + 1), *(f"{loss:.6f}" for loss in losses)]
        if len(losses) > 1:
            gap = abs(losses[0] - losses[1])
            cells.append("0 (equal bits)" if gap == 0 else f"{gap:.1e}")
        table.add_row(*cells)
    return table


def train(trainers: list[Trainer], text: CharacterText, steps: int, console: Console) -> None:
    """Feed every batch to each trainer in turn, and redraw the table as the losses come in."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for index in range(steps):
            tokens, targets = text.batch(BATCH, CONTEXT)
            for trainer in trainers:
                trainer.step(tokens, targets)
            bar = ProgressBar(total=steps, completed=index + 1, width=60)
            live.update(Group(loss_table(trainers, steps), bar), refresh=True)
    console.print(loss_table(trainers, steps))


def summary_table(trainers: list[Trainer]) -> Table:
    table = Table(title="Speed and memory", expand=True)
    for heading in ("device", "ms per step", "tokens per second", "relative to the CPU", "peak memory"):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    cpu = next((t for t in trainers if t.device.type == "cpu"), None)
    for trainer in trainers:
        speed = trainer.tokens_per_second()
        module = device_module(trainer.device)
        peak = f"{module.max_memory_allocated() / 2**20:.1f} MiB" if module is not None else "not counted"
        ratio = f"{speed / cpu.tokens_per_second():.2f} x" if cpu else ""
        milliseconds = f"{1000 * BATCH * CONTEXT / speed:.1f}"
        table.add_row(str(trainer.device), milliseconds, f"{speed:,.0f}", ratio, peak)
    return table


def story(trainers: list[Trainer], text: CharacterText, count: int, seed: int) -> Panel:
    written = [trainer.write(text, count, seed) for trainer in trainers]
    note = ""
    if len(written) > 1:
        same = written[0] == written[1]
        note = "the CPU's model writes the same text" if same else "the CPU's model writes another text"
    return Panel(Text(written[0]), title=f"Text written by the model on {trainers[0].device}", subtitle=note)


def main(
    device: Annotated[str, typer.Option(help="where to train: dipu, cpu, cuda, ...")] = "dipu",
    steps: Annotated[int, typer.Option(min=1, help="training steps")] = 240,
    layers: Annotated[int, typer.Option(min=1, help="transformer blocks")] = 4,
    width: Annotated[int, typer.Option(min=4, help="width of the model, a multiple of 4")] = 128,
    reference: Annotated[bool, typer.Option(help="train on the CPU as well and compare")] = True,
    seed: Annotated[int, typer.Option(help="seed of weights, batches and text")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="threads torch may use, on both sides")] = 1,
    characters: Annotated[int, typer.Option(min=0, help="length of the text to write")] = 300,
) -> None:
    """Train a small character GPT, compare it with the CPU, and show its text and where the time went."""
    console = Console(width=min(Console().width, 100) if Console().is_terminal else 100)
    if width % 4:
        raise typer.BadParameter(
            "the model has 4 heads: --width must be a multiple of 4", param_hint="--width"
        )
    torch.set_num_threads(threads)
    chosen = open_device(device)
    torch.manual_seed(seed)
    text = CharacterText(CORPUS.read_text(), seed)
    config = GPTConfig(vocabulary=len(text.characters), context=CONTEXT, layers=layers, width=width)
    model = GPT(config)
    trainers = [Trainer(model, chosen, steps)]
    if reference and chosen.type != "cpu":
        trainers.append(Trainer(model, torch.device("cpu"), steps))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    devices = " and, from the same weights and batches, on ".join(str(t.device) for t in trainers)
    console.print(
        f"A GPT of {parameters:,} parameters ({layers} layers, width {width}) is trained for {steps} steps "
        f"of {BATCH} x {CONTEXT} characters on {devices}; torch {torch.__version__}, threads: {threads}."
    )
    train(trainers, text, steps, console)
    speed = summary_table(trainers)
    console.print(story(trainers, text, characters, seed))
    console.print(speed)

    def profiled() -> None:
        for _ in range(PROFILED_STEPS):
            trainers[0].step(*text.batch(BATCH, CONTEXT))

    console.print(operator_table(profiled, chosen, device_module(chosen), PROFILED_STEPS))


if __name__ == "__main__":
    typer.run(main)
