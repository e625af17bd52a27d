"""Make the pictures of the report in docs/images from a real training with a wrong kernel on the device.

Run: python tools/report_screenshots.py. It needs the device `dipu` and Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headless_browser import Browser

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
LARGEST = 300_000

# The examples' model; its backward of GELU goes wrong in the middle of the training, as a bad kernel choice would.
TRAINING = """\
import torch
import op_tools
from op_tools.memory import MemoryMonitor
from find_wrong_operator import break_gelu
from gpt import CORPUS, GPT, CharacterText, GPTConfig


def train(steps=8):
    text = CharacterText(CORPUS.read_text(), seed=0)
    model = GPT(GPTConfig(len(text.characters), context=32, layers=2, width=64)).to("dipu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, foreach=False)
    for step in range(steps):
        if step == 3:
            kernel = break_gelu()
        start = 32 * step
        piece = text.data[start : start + 4 * 33].view(4, 33).to("dipu")
        loss = model.loss(piece[:, :-1], piece[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
with op_tools.OpAutoCompare(), op_tools.OpTimeMeasure(), op_tools.OpOverflowCheck(), MemoryMonitor(interval=0.05):
    train()
"""
# Name, width of the window, height of the picture, dark.
PICTURES = (
    ("report-desktop", 1280, 1500, False),
    ("report-mobile", 400, 1400, False),
    ("report-dark", 1280, 1000, True),
)


def write_report(folder: Path) -> Path:
    """Train in a folder and write the report of it."""
    for name in ("gpt.py", "find_wrong_operator.py", "corpus.txt"):
        shutil.copy(ROOT / "examples" / name, folder)
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in (
        ["train.py"],
        ["-m", "op_tools.cli", "report", "--title", "gpt on dipu, GELU broken in step 3"],
    ):
        subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True)
    return folder / "op_tools_results" / "report.html"


def take(page: Path, name: str, width: int, height: int, dark: bool) -> Path:
    """One picture; it is an error if it is too large for a repository."""
    path = IMAGES / f"{name}.png"
    with Browser(width, 900, dark=dark) as browser:
        browser.open(page)
        browser.screenshot(path, height)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; expected at most {LARGEST}")
    return path


def main() -> None:
    """Train, report, take the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="training-") as folder:
        page = write_report(Path(folder))
        for picture in PICTURES:
            path = take(page, *picture)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
