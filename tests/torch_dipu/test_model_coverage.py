"""Training steps of whole models: nearly every operator call is served by a DIOPI function."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from forked_python import run_python
from torch import nn

import torch_dipu  # noqa: F401
from diopi.conformance.models import load
from torch_dipu.coverage import Coverage

LLAMA = Path(__file__).parents[1] / "op_tools" / "small_llama.py"
ENOUGH = 0.95


def test_llama(tmp_path: Path) -> None:
    figures = tmp_path / "coverage.json"
    command = ["-m", "dipu", "coverage", "--json", str(figures), "--at-least", "95"]
    done = run_python(*command, str(LLAMA), "--device", "dipu", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 1 loss" in done.stdout
    found = json.loads(figures.read_text())
    assert found["calls"] > 300
    assert found["diopi_share"] >= ENOUGH


def test_resnet50() -> None:
    with torch.device("dipu"):
        step = load()["resnet50"]()
    module = step.module.to("dipu")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    with Coverage() as coverage:
        step.loss().backward()
        optimizer.step()
    assert coverage.calls > 500
    assert coverage.share >= ENOUGH, [o for o in coverage.operators if o.fallback_calls]


def test_bert() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    words, places, out = nn.Embedding(61, 32), nn.Embedding(16, 32), nn.Linear(32, 61)
    model = nn.ModuleList([encoder, words, places, out]).to("dipu")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 61, (2, 16), device="dipu")
    with Coverage() as coverage:
        for _ in range(2):
            hidden = encoder(words(tokens) + places(torch.arange(16, device="dipu")))
            loss = nn.functional.cross_entropy(out(hidden).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert coverage.calls > 300
    assert coverage.share >= ENOUGH, [o for o in coverage.operators if o.fallback_calls]
