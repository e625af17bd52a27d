"""docs/profiler.md: its Python blocks run, one after the other, and print and write what the page says."""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path

import pytest
from forked_python import run_python

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("docs/profiler.md", "docs/profiler.zh-CN.md")
COLUMNS = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg")
OF_CUDA = ("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def tables(printed: str) -> list[tuple[list[str], list[list[str]]]]:
    """Titles and rows of every table that torch printed."""
    found = []
    for head, body in re.findall(
        r"^-[- ]+\n(.*?)\n-[- ]+\n(.*?)\n-[- ]+\nSelf CPU time total", printed, re.M | re.S
    ):
        found.append(
            (
                re.split(r"\s{2,}", head.strip()),
                [re.split(r"\s{2,}", line.strip()) for line in body.splitlines()],
            )
        )
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("tutorial")
    code = "".join(blocks(PAGES[0], "python"))
    (folder / "tutorial.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": "1"}
    done = run_python("tutorial.py", cwd=folder, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder


def test_every_table_has_the_columns_of_the_page(run: tuple[str, Path]) -> None:
    printed = tables(run[0])
    shown = tables("".join(blocks(PAGES[0], "text")))
    assert len(printed) >= len(shown) >= 5
    heads = {tuple(head) for head, _ in printed}
    for head, _ in shown:
        assert tuple(head) in heads, head


def test_the_device_table_has_rows_of_every_kind(run: tuple[str, Path]) -> None:
    head, rows = next(
        table for table in tables(run[0]) if "Self CUDA" in table[0] and "Input Shapes" not in table[0]
    )
    assert head == ["Name", *COLUMNS, *OF_CUDA, "# of Calls"]
    calls = {row[0]: row[-1] for row in rows}
    for name in (
        "model_inference",
        "aten::conv2d",
        "aten::convolution_overrideable",
        "dipu_convolution_overrideable",
        "diopiConvolution2d",
        "dipu_native_batch_norm",
        "diopiBatchNorm",
    ):
        assert name in calls, name
    assert calls["diopiConvolution2d"] == calls["diopiBatchNorm"] == calls["aten::conv2d"] == "20"
    assert run[0].count("Self CUDA time total: ") >= 4


def test_the_files_of_the_page_are_written(run: tuple[str, Path]) -> None:
    events = json.loads((run[1] / "trace.json").read_text())["traceEvents"]
    assert sum(e.get("cat") == "kernel" and e["name"] == "diopiConvolution2d" for e in events) == 20
    host = [e["name"] for e in events if e.get("cat") == "privateuse1_runtime"]
    for name in (
        "LaunchKernel_dipu_native_batch_norm",
        "LaunchKernel_diopiBatchNorm",
        "wrapper_DIPU_empty_memory_format",
    ):
        assert host.count(name) == 20, name
    assert {path.name for path in run[1].glob("trace_*.json")} == {"trace_4.json", "trace_8.json"}


def test_mmengines_hook(tmp_path: Path) -> None:
    """`ProfilerHook(activity_with_cuda=True, json_trace_path=...)`: the calls it makes, without the package."""
    done = run_python(
        "-c",
        textwrap.dedent(
            """
            import torch, torch_dipu

            class ProfilerHook:
                def __init__(self, profile_times, json_trace_path):
                    self.profile_times, self.path = profile_times, json_trace_path
                    assert torch.cuda.is_available()
                    self.activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]

                def before_run(self):
                    self.profiler = torch.profiler.profile(
                        activities=self.activities, schedule=None, on_trace_ready=None,
                        record_shapes=False, profile_memory=False, with_stack=False, with_flops=False,
                    )
                    self.profiler.__enter__()

                def after_train_iter(self, iteration):
                    if iteration < self.profile_times:
                        self.profiler.step()
                    if iteration == self.profile_times - 1:
                        self.profiler.__exit__(None, None, None)
                        self.profiler.export_chrome_trace(self.path)
                        print(self.profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=3))

            hook = ProfilerHook(profile_times=3, json_trace_path="trace.json")
            model, x = torch.nn.Linear(4, 4).cuda(), torch.ones(2, 4).cuda()
            hook.before_run()
            for iteration in range(5):
                model(x).sum().backward()
                hook.after_train_iter(iteration)
            """
        ),
        cwd=tmp_path,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (head, rows), *_ = tables(done.stdout)
    assert "Self CUDA" in head and len(rows) == 3
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(e.get("cat") == "kernel" and e["name"] == "diopiAddmm" for e in events) == 3
