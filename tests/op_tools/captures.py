"""Makes captured calls for the tests of replay, and runs them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from op_tools.captured import admission
from op_tools.names import name_of
from op_tools.replay import ItemReport, Options, find_items, replay_item
from op_tools.storage import CallInfo, CaptureStore

#: To be preloaded for programs that use the tools on the device.
TOOLS = (
    "torch_dipu",
    "op_tools.bisect.driver",
    "op_tools.tools.autocompare",
    "op_tools.tools.capture",
    "op_tools.tools.fallback",
    "torch._dynamo",  # what every optimizer imports, at 1.6 s
)
ON_HOST = Options(device="cpu", verbose=False)


def one(folder: Path, options: Options = ON_HOST) -> ItemReport:
    """Replay the only call in a folder."""
    (item,) = find_items(folder)
    return replay_item(item, options)


def verdicts(report: ItemReport) -> dict[str, str]:
    """Verdicts by the name of what was compared, without the operator's."""
    return {row["name"].removeprefix(f"{report.name} "): row["verdict"] for row in report.rows}


def nothing(*_: Any) -> None:
    """Stands in for a function whose inputs are captured and which is not run."""


class Faulty:
    """Right on meta tensors and for the reference, and whatever `fault` makes of it when the device runs it."""

    def __init__(
        self, right: Callable[..., Any], fault: Callable[..., Any], runs: tuple[int, ...] = (1,)
    ) -> None:
        self.right, self.fault, self.runs, self.count = right, fault, runs, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args[0].device.type == "meta":
            return self.right(*args, **kwargs)
        self.count += 1
        return (self.fault if self.count in self.runs else self.right)(*args, **kwargs)


def with_fault(monkeypatch: pytest.MonkeyPatch, faulty: Faulty) -> None:
    """Let replay run `faulty` whatever the capture names."""
    monkeypatch.setattr(admission, "function_named", lambda name, allow=(): faulty)


def capture(
    root: Path,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    forward_id: int = 1,
    grads: Sequence[torch.Tensor | None] | None = None,
    change: Callable[[Any], Any] = lambda result: result,
    outputs: bool = True,
    kind: Literal["files", "blobs"] = "files",
    **info: Any,
) -> Path:
    """Run a call and save it as the capture tool does; `change` falsifies what is saved as its result."""
    kwargs = kwargs or {}
    call = CallInfo(name or name_of(func), forward_id, **{"device": "cpu", **info})
    with CaptureStore(root, kind) as store:
        store.put(call, "input", args, kwargs)
        result = func(*args, **kwargs)
        if outputs:
            saved = change(result)
            store.put(call, "output", saved if type(saved) is tuple else (saved,))
        if grads is not None:
            _capture_grads(store, call, args, kwargs, result, grads)
    assert store.stats.complete, store.stats.reason
    (path,) = root.glob(f"op_capture_results/*/*/{forward_id}/*/input.pth")
    return path.parent


def _capture_grads(
    store: CaptureStore, call: CallInfo, args: Any, kwargs: Any, result: Any, grads: Sequence[Any]
) -> None:
    results = result if isinstance(result, tuple) else (result,)
    pairs = [(out, grad) for out, grad in zip(results, grads, strict=True) if grad is not None]
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    wanted = [value for value in inputs if value.requires_grad]
    found = torch.autograd.grad(
        [out for out, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True
    )
    by_input = dict(zip(map(id, wanted), found, strict=True))
    store.put(call, "grad_inputs", tuple(by_input.get(id(value)) for value in inputs))
    store.put(call, "grad_outputs", tuple(grads))


def published(
    folder: Path, name: str, prefix: str = "", **parts: tuple[Sequence[Any], Mapping[str, Any]]
) -> Path:
    """Files in the form of the published tools: torch.save of name, args, kwargs and identifier, and a .json."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, (args, kwargs) in parts.items():
        path = folder / f"{prefix}{part}.pth"
        saved = {"name": name, "args": tuple(args), "kwargs": dict(kwargs), "identifier": f"7/{part}"}
        torch.save(saved, path)
        path.with_name(path.name + ".json").write_text(json.dumps({"args": [], "op": name}))
    return folder
