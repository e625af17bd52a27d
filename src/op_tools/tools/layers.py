"""OpLayers: what goes into and out of each module in one iteration, forward and backward, to compare two devices."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import weakref
from typing import Any, ClassVar

import torch
from torch.nn.modules import module as torch_module

from dicore.settings import SettingError, one_of, setting
from op_tools.engine import ENGINE, private, site
from op_tools.engine.backward import CallGraph, GradientRecorder, Gradients, in_order
from op_tools.results import rank_info
from op_tools.settings import ToolSettings
from op_tools.storage import CallInfo, CaptureStore
from op_tools.tool import Tool
from op_tools.tools.capture import numbers
from op_tools.tools.layer_names import ModelNames, is_compiled, is_wrapper, own_weights, unwrapped

__all__ = ["LayersSettings", "OpLayers", "wanted_steps"]


def wanted_steps(text: str) -> range | frozenset[int]:
    """Read `0`, `0,3`, `10-20` or `all`."""
    if text.strip() == "all":
        return range(sys.maxsize)
    try:
        return numbers(text)
    except ValueError:
        raise ValueError(f"expected 5, 0,3, 10-20 or all, got {text!r}") from None


@dataclasses.dataclass(frozen=True)
class LayersSettings(ToolSettings):
    """Settings of OpLayers."""

    list: str = setting(".*", "OP_LAYERS_LIST", str, "module paths to record")
    disable_list: str = setting("", "OP_LAYERS_DISABLE_LIST", str, "module paths to leave out")
    steps: Any = setting(
        frozenset({0}),
        "OP_LAYERS_STEPS",
        wanted_steps,
        "iterations to record, counted from `start()`: `0`, `0,3`, `10-20` or `all`",
    )
    store: str = setting(
        "blobs", "OP_LAYERS_STORE", one_of("files", "blobs"), "`files`, or `blobs`: every tensor once"
    )


@dataclasses.dataclass(slots=True, eq=False)
class Visit:
    """A call of a module that is under way."""

    module: torch.nn.Module
    model: str = ""
    path: str = ""
    call: int = 0
    parent: int = 0
    inside_compiled: bool = False
    info: CallInfo | None = None
    graph: CallGraph | None = None
    where: site.CallSite | None = None


class _Here(threading.local):
    """The module calls that are under way on one thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[Visit] = []


class OpLayers(Tool):
    """Saves inputs, outputs, weights and gradients of each module call under op_layer_result/."""

    section = "layers"
    command_name = "layers"
    order = 80
    hook_name = "OpLayersHook"
    schema = LayersSettings
    result_folder = "op_layer_result"
    result_file = "op_layer_info"
    columns: ClassVar = (
        "forward_id", "name", "class", "call", "model", "parent", "step", "rank", "folder", "call_site",
    )  # fmt: skip
    uses_api = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.store: CaptureStore | None = None
        self._hooks: list[Any] = []

    def read_settings(self) -> None:
        super().read_settings()
        steps = self.settings.steps
        self._steps = frozenset({steps}) if isinstance(steps, int) else steps
        if self.settings.store not in ("files", "blobs"):
            raise SettingError(f"{self._origin('store')} is {self.settings.store!r}; expected files or blobs")

    # -- the switch ----------------------------------------------------------------------------------------

    def opened(self) -> None:
        self.store = CaptureStore(self._result_folder(), self.settings.store)
        self.recorded = 0
        self._process = os.getpid()
        self._first_step = ENGINE.step
        self._here = _Here()
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._recorders: list[GradientRecorder] = []
        self._model_names = ModelNames()
        # Calls without a graph, by module: checkpointing may make the graph later, when it computes them again.
        self._graphless: weakref.WeakKeyDictionary[Any, list[CallInfo]] = weakref.WeakKeyDictionary()
        self._hooks = _hooks_of(weakref.ref(self))

    def stepped(self, step: int) -> None:
        self._finish_recorders()
        self._counts.clear()
        self._graphless.clear()
        if self.results is not None:
            self.results.flush()

    def _finish_recorders(self) -> None:
        with self._lock:
            recorders, self._recorders = self._recorders, []
        for recorder in recorders:
            recorder.finish()

    def closed(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self.store is None:
            return
        self._finish_recorders()
        self.store.close()
        stats, self.store = self.store.stats, None
        self.close_results()
        state = "complete" if stats.complete else f"INCOMPLETE: {stats.reason}"
        written = f"{self.recorded} module calls, {stats.written_bytes / 1e6:.1f} MB"
        self.say(f"op_tools: OpLayers saved {written}, under {self._result_folder()} ({state})")
        if not self.recorded:
            asked_for = "the steps and paths asked for (OP_LAYERS_STEPS, OP_LAYERS_LIST)"
            self.say(f"op_tools: OpLayers saw no call of a module in {asked_for}")

    def after_fork(self) -> None:
        super().after_fork()
        self._lock = threading.Lock()

    # -- a call of a module --------------------------------------------------------------------------------

    @property
    def _step(self) -> int:
        return ENGINE.step - self._first_step

    def entered(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack = self._here.stack
        visit = Visit(module)
        records = self._records_now()
        if records:
            visit.where = site.read()
            _forget_interrupted(stack, visit.where)
        above = stack[-1] if stack else None
        stack.append(visit)
        if above is not None:
            visit.parent = above.info.forward_id if above.info is not None else above.parent
            visit.inside_compiled = above.inside_compiled or is_compiled(above.module)
        if visit.inside_compiled or not records:
            return
        if private.current_node() is not None:
            self._computed_again(visit, args, kwargs)
            return
        if is_wrapper(module) and not is_compiled(module):
            return
        visit.model, visit.path = self._model_names.of([other.module for other in stack])
        key = (visit.model, visit.path)
        with self._lock:
            visit.call = self._counts.get(key, 0)
            self._counts[key] = visit.call + 1
        inputs = _tensors_in((args, kwargs))
        if self.names.match(visit.path or visit.model) and self._is_watched(module, inputs):
            self._save_inputs(visit, args, kwargs, inputs)

    def _records_now(self) -> bool:
        return (
            self.running
            and os.getpid() == self._process
            and self._step in self._steps
            and private.functorch_active() is None
            and not private.fake_mode_active()
            and not torch.jit.is_tracing()
        )

    def _is_watched(self, module: torch.nn.Module, inputs: list[torch.Tensor]) -> bool:
        """Any device, the CPU too: it is often one of the two that are compared. Unless the setting names some."""
        if self.settings.device.strip() in {"", "auto"}:
            return True
        own = own_weights(module).values()
        return self.covers({tensor.device.type for tensor in (*inputs, *own)})

    def _save_inputs(self, visit: Visit, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> None:
        assert self.store is not None
        module = visit.module
        weights = own_weights(module)
        devices = [tensor.device for tensor in (*inputs, *weights.values())]
        device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        plain = not kwargs and len(args) == len(inputs)
        visit.info = CallInfo(
            name=visit.path or visit.model,
            forward_id=ENGINE.next_id(),
            time=time.strftime("%Y-%m-%d-%H-%M-%S"),
            step=self._step,
            device=str(device),
            call_site=visit.where.text() if visit.where is not None else "",
            extra=_facts(module, device, plain),
            **rank_info(),
        )
        buffers = dict(unwrapped(module).named_buffers(recurse=False))
        self.store.put(visit.info, "input", inputs, {"weights": weights, "buffers": buffers})
        if torch.is_grad_enabled():
            visit.graph = CallGraph((*enumerate(inputs), *weights.items()))

    def _computed_again(self, visit: Visit, args: Any, kwargs: Any) -> None:
        """In backward: the values are known, but only this graph tells the gradients if the first had none."""
        waiting = self._graphless.pop(visit.module, [])
        if len(waiting) == 1 and torch.is_grad_enabled():
            visit.info = waiting[0]
            visit.call = -1
            weights = own_weights(visit.module)
            visit.graph = CallGraph((*enumerate(_tensors_in((args, kwargs))), *weights.items()))

    def left(self, module: torch.nn.Module, result: Any) -> None:
        """A module has run; without a result it has raised."""
        stack = self._here.stack
        if all(visit.module is not module for visit in stack):  # entered before the tool was started
            return
        while (visit := stack.pop()).module is not module:
            pass  # left by an exception that torch does not tell hooks of
        info, store = visit.info, self.store
        outputs = _tensors_in(result)
        if info is None or store is None or not outputs:
            return
        if visit.call >= 0:
            store.put(info, "output", outputs)
            self._write_row(visit, info, store)
        if visit.graph is not None:
            self._follow_gradients(visit, info, outputs)
        elif not torch.is_grad_enabled() and module.training:
            self._graphless.setdefault(module, []).append(info)

    def _write_row(self, visit: Visit, info: CallInfo, store: CaptureStore) -> None:
        self.recorded += 1
        row = {
            "forward_id": info.forward_id,
            "name": info.name,
            "class": type(unwrapped(visit.module)).__name__,
            "call": visit.call,
            "model": visit.model,
            "parent": visit.parent,
            "step": info.step,
            "folder": store.folder_of(info),
            "call_site": info.call_site,
            "thread": threading.get_ident(),
            "level": "module",
            "phase": "forward",
            **rank_info(),
        }
        self.open_results().append(row)

    def _follow_gradients(self, visit: Visit, info: CallInfo, outputs: list[torch.Tensor]) -> None:
        store, run = self.store, self.run

        def done(given: Gradients, taken: dict[int, torch.Tensor], _: Any) -> None:
            if store is None or self.run != run:
                return
            weights = {key: grad for key, grad in given.items() if isinstance(key, str)}
            inputs = {key: grad for key, grad in given.items() if isinstance(key, int)}
            in_given_order = in_order(inputs, max(inputs, default=-1) + 1)
            store.put(info, "grad_inputs", in_given_order, {"weights": weights})
            store.put(info, "grad_outputs", in_order(taken, max(taken, default=-1) + 1))

        def guard(function: Any, *values: Any) -> None:
            if self.running and self.run == run:
                private.silently(ENGINE.guarded, self, None, function, *values)

        assert visit.graph is not None
        exits = visit.graph.exits(outputs)
        if exits:
            recorder = GradientRecorder(done, once=True, follow=False)
            recorder.attach(visit.graph.nodes(exits), guard)
            with self._lock:
                self._recorders.append(recorder)


def _hooks_of(reference: weakref.ref[OpLayers]) -> list[Any]:
    """Global hooks that lead to the tool; the compiler sees that they do nothing in what it compiles."""

    def entering(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        tool = reference()
        if tool is not None:
            # Torch tells global hooks no keyword arguments; they lie in the frame that calls them.
            kwargs = sys._getframe(1).f_locals.get("kwargs", {})
            private.silently(ENGINE.guarded, tool, None, tool.entered, module, args, kwargs)

    def leaving(module: torch.nn.Module, args: tuple[Any, ...], result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        tool = reference()
        if tool is not None:
            private.silently(ENGINE.guarded, tool, None, tool.left, module, result)

    return [
        torch_module.register_module_forward_pre_hook(entering),
        # Called too where the module raises, so that the stack of modules stays right.
        torch_module.register_module_forward_hook(leaving, always_call=True),
    ]


def _forget_interrupted(stack: list[Visit], where: site.CallSite) -> None:
    """Torch tells hooks nothing of a module that Ctrl-C has ended: it is no longer among those being called."""
    running = [reference() for reference in where.modules]
    while stack and all(module is not stack[-1].module for module in running):
        stack.pop()


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors in the order of the tree: tuples, lists, dicts, dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if not isinstance(value, tuple | list):
        return []
    return [tensor for item in value for tensor in _tensors_in(item)]


def _facts(module: torch.nn.Module, device: torch.device, plain: bool) -> dict[str, Any]:
    """What is needed to compute the call again: the class, its constants, autocast."""
    inner = unwrapped(module)
    facts: dict[str, Any] = {
        "class": f"{type(inner).__module__}.{type(inner).__qualname__}",
        "training": inner.training,
    }
    hooked = inner._forward_hooks or inner._forward_pre_hooks
    # Hooks of the module itself may change what goes in or comes out.
    if plain and not hooked and inner is module and type(inner).__module__.startswith("torch.nn.modules."):
        names = [name for kind in type(inner).__mro__ for name in getattr(kind, "__constants__", ())]
        facts["constants"] = {name: getattr(inner, name) for name in names if hasattr(inner, name)}
    if torch.is_autocast_enabled(device.type):
        facts["autocast"] = (True, torch.get_autocast_dtype(device.type))
    return facts
