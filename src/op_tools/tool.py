"""What every tool has: settings, a switch, and the hooks the engine calls.

A tool is one file in `tools/`: a subclass with a settings schema and the hooks it needs. Everything that happens in a
hook is guarded by the engine: an error becomes a row in the tool's report, never an exception in the program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch

from dicore.settings import read
from op_tools.engine import ENGINE, Call, site
from op_tools.engine.compiled import COMPILED
from op_tools.engine.named import functions_named
from op_tools.names import registered_operators
from op_tools.results import Results, mark_run, rank_info, run_id
from op_tools.settings import ROOT, NameFilter, ToolSettings

if TYPE_CHECKING:
    from dicore.settings import Source


ReportSection = Literal["rows", "operators", "findings", "overflow", "time", "memory"]


def in_backward_of(row: Mapping[str, Any]) -> str:
    """Of which forward call a row in backward is, for a line of text."""
    return f" (backward of {row['forward_name']})" if row.get("forward_name") else ""


def at_call_site(row: Mapping[str, Any]) -> str:
    """Where the call of a row stands, for a line of text."""
    return f", step {row.get('step')}\n      at {row['call_site']}" if row.get("call_site") else ""


class Tool:
    """A tool that can be started and stopped, any number of times, alone or with others."""

    # What a tool is called and what it writes. `op_tools.registry` finds the class by its section; commands, settings,
    # gates and the report read the rest here, so that a tool is one file.
    section: ClassVar[str] = ""  # of the settings file; also what a run calls the tool's rows
    command_name: ClassVar[str] = ""  # after `ditorch run --tool`; empty: the tool is not offered there
    feature: ClassVar[str] = ""  # for apply_feature; empty: the tool is not for single functions
    order: ClassVar[int] = 100  # where lists of tools show it
    hook_name: ClassVar[str] = ""  # as printed
    schema: ClassVar[type[ToolSettings]] = ToolSettings
    result_folder: ClassVar[str] = ""
    result_file: ClassVar[str] = ""
    columns: ClassVar[Sequence[str]] = ()
    # How the report reads the rows. `operators` and `findings`: each has a verdict, and is counted by operator or listed in
    # a section of its own; `overflow`: NaN and Inf that were born; `time`; `memory`; `rows`: in the table of all rows only.
    report_section: ClassVar[ReportSection] = "rows"
    # Whether rows can say that a run is wrong: the tool is a gate of `ditorch run`. What value the gate takes, if one.
    judges: ClassVar[bool] = False
    gate_value: ClassVar[str] = ""
    # Whether rows can have a label, on which a strict gate fails.
    gives_labels: ClassVar[bool] = False

    # What the engine asks once and caches.
    uses_api = True
    uses_aten = False
    wants_backward = False
    # and whether it reads the values of gradients, not only their shapes.
    reads_gradients = True
    wants_ties = False
    executes = False
    aten_everywhere = False
    # At ATen level: API calls only say what an ATen call is part of; they do not go through the hooks.
    api_is_context = False
    # Operators that a list names are taken where they reach the kernels, not where the program calls them by torch.ops.
    takes_operators_below = False
    takes_compiled = False
    # A quick way to leave a call alone, asked before anything else is made of it: (name, args, kwargs, step) -> bool.
    declines: Any = None
    # The same at ATen level, decided below Python: `op_tools.engine.native.sampler`.
    native_sampler: Any = None

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.settings: Any = None
        self.sources: dict[str, Source] = {}
        self.names = NameFilter()
        self.condition: Any = None
        self.only: frozenset[Any] | None = None
        self.run = 0  # how often it was started: what is left of an earlier run is not this one's
        self.running = False
        self._depth = 0  # of `with` blocks inside each other
        self.results: Results | None = None
        self._said: set[str] = set()
        self._types: frozenset[str] | None = None
        self.read_settings()

    # -- the switch ----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Turn the tool on for this thread and for threads started from now on."""
        if self.running:
            return self
        self.read_settings()
        run_id()  # children that start before the first row belong to this run
        self.opened()
        self.run += 1
        self.running = True
        ENGINE.start(self)
        return self

    def stop(self) -> None:
        """Turn the tool off, write what is pending and print the summary."""
        if not self.running:
            return
        self.running = False
        ENGINE.stop(self)
        ENGINE.guarded(self, None, self.closed)
        if self.result_file:
            ENGINE.guarded(self, None, mark_run, self._result_folder(), self.result_file)

    end = stop

    def __enter__(self) -> Self:
        self._depth += 1
        return self.start()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.stop()

    # -- settings ------------------------------------------------------------------------------------------

    def read_settings(self) -> None:
        """Read the settings anew: at start, and at every call that apply_feature applies to."""
        self.settings, self.sources = read(self.schema, f"{ROOT}.{self.section}", self.arguments)
        listed = getattr(self.settings, "list", ".*") or ".*"
        disabled = getattr(self.settings, "disable_list", "")
        self.names = NameFilter(listed, disabled, self._origin("list"), self._origin("disable_list"))
        # What the list spells out; None where it takes a mode to see what it may mean. apply_feature finds a function under
        # whatever name the program has for it, which only a mode can.
        self.api_functions = None
        if self.only is None and not self.says_skips:
            self.api_functions = functions_named(self.names, operators=not self.takes_operators_below)
        self._types = self._device_types(self.settings.device)

    def _origin(self, name: str) -> str:
        source = self.sources.get(name)
        return f"{name} ({source.origin})" if source else name

    @staticmethod
    def _device_types(text: str) -> frozenset[str] | None:
        if text.strip() not in {"", "auto"}:
            return frozenset(word.strip().split(":")[0] for word in text.split(","))
        return None if torch.accelerator.is_available() else frozenset({"cpu"})

    # -- what the engine asks ------------------------------------------------------------------------------

    @property
    def says_skips(self) -> bool:
        """Whether each call this tool does not take is said, as the printed form of the documents has it."""
        return bool(self.settings.verbose) and self.only is None

    def wants_api(self, name: str, func: Any) -> bool:
        """Whether the tool is for this function. Asked once per function."""
        if self.only is not None:
            return name in self.only or func in self.only
        return self.uses_api and self.names.match(name)

    def wants_aten(self, name: str, func: Any) -> bool:
        """Whether the tool is for this operator at ATen level. Asked once per operator."""
        return False

    def names_kernel(self, name: str) -> bool:
        """Whether the tool may want an operator at ATen level for its own name, and not for the call it is part of."""
        return self.only is None and self.names.match(name)

    @property
    def device_types(self) -> frozenset[str] | None:
        """The device types whose calls are taken; None: all but the CPU."""
        return self._types

    def wants_parent(self, name: str) -> bool:
        """Whether ATen calls must know that they are part, or backward, of a call that the tool itself does not take."""
        return self.uses_aten and self.only is None and self.names.excludes(name)

    @property
    def takes_all(self) -> bool:
        """Whether applies() is true of every call at API level that the tool wants. Asked once per function."""
        return self.only is None and type(self).applies is Tool.applies

    def covers(self, types: set[str]) -> bool:
        """Whether a call with tensors on these devices concerns the tool."""
        if self._types is not None:
            return not self._types.isdisjoint(types)
        return bool(types - {"cpu", "meta"})

    def applies(self, call: Call) -> bool:
        """Whether the tool takes this very call: conditions, limits, sampling."""
        if self.only is None:
            return True
        self.read_settings()  # documents of apply_feature set variables in between
        # The user's function may call torch; what it calls is not the program's.
        holds = self.condition is None or bool(self.condition(*call.args, **call.kwargs))
        if not holds:
            self.say(f"skip {self.hook_name} on {call.name}")
        return holds

    # -- hooks ---------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """The tool is about to start: open what results need."""

    def closed(self) -> None:
        """The tool has stopped: write, close, print the summary."""

    def switched(self, on: bool) -> None:
        """The engine begins to show calls to the tool, or ends it."""

    def before(self, call: Call) -> None:
        """A call is about to run."""

    def after(self, call: Call, result: Any) -> None:
        """A call has run."""

    def failed(self, call: Call) -> None:
        """A call has raised; the exception goes on to the program."""

    def backward_begins(self, call: Call) -> None:
        """The first gradient has reached a call's outputs."""

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        """The gradients of a call's inputs are known; None where there is none that is the call's own."""

    def gradients_mixed(self, call: Call, inputs: list[int]) -> None:
        """Before `backward`: the gradients that a call gave to these inputs hold what it was not given."""

    def execute(self, call: Call, run: Any) -> Any:
        """Run the call in the tool's own way; `run` is the call without the tool."""
        return run()

    def stepped(self, step: int) -> None:
        """An optimizer has made a step."""

    def after_fork(self) -> None:
        """The process is a forked child: nothing of the parent's files may be written."""
        if self.results is not None:
            self.results.after_fork()

    # -- the gate ------------------------------------------------------------------------------------------

    @classmethod
    def faults(cls, rows: Iterable[Mapping[str, Any]], limit: int = 0) -> list[str]:
        """What speaks against a run, one text each, in the order it happened. `limit` is the value of the gate."""
        return [text for row in rows if (text := cls.fault(row))]

    @classmethod
    def fault(cls, row: Mapping[str, Any]) -> str:
        """What one row says against a run, or nothing."""
        if row.get("verdict") != "fail":
            return ""
        return f"{row.get('name')} is wrong{in_backward_of(row)}: {row.get('reason')}{at_call_site(row)}"

    @classmethod
    def inconclusive(cls, rows: Sequence[Mapping[str, Any]]) -> str:
        """Why rows without a fault say nothing; empty where they do say that all is well."""
        if all(row.get("verdict") in ("", None, "skipped") for row in rows):
            return (
                "nothing was compared, so nothing is known. Check that the program computes on the device, and the settings "
                "list, disable_list and device."
            )
        return ""

    # -- output --------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Print a line for the user."""
        # A closed or broken standard output is no reason to stop.
        with contextlib.suppress(OSError, ValueError):
            print(text, flush=True)

    def say_saved(self, path: str) -> None:
        """Say that a file was written, when verbose."""
        if self.settings.verbose:
            self.say(f"{path} saved")

    def say_applied(self, name: str) -> None:
        """Say that the tool is used on an operator: every time when verbose, else the first time."""
        if self.settings.verbose or name not in self._said:
            self._said.add(name)
            self.say(f"apply {self.hook_name} on {name}")

    def say_once(self, call: Call, text: str) -> None:
        """Print what happened to an operator, the first time it does."""
        key = f"{call.name}\n{text}"
        if key not in self._said:
            self._said.add(key)
            self.say(f"op_tools: {type(self).__name__}: {call.name} {text}")

    def open_results(self) -> Results:
        """The row log of this tool, in the folder the documents name."""
        if self.results is None:
            folder = self._result_folder()
            settings = {name: str(source.value) for name, source in self.sources.items()}
            about = {"tool": type(self).__name__, "torch": torch.__version__, "settings": settings}
            size = self.settings.max_cache_size
            self.results = Results(folder, self.result_file, self.columns, size, about)
        return self.results

    def close_results(self) -> Results | None:
        """Write what waits and close the row log; it, if there was one."""
        results, self.results = self.results, None
        if results is not None:
            results.close()
        return results

    def _result_folder(self) -> str:
        return os.path.join(self.settings.results, self.result_folder)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from op_tools.report import html_of

        return html_of(self)

    def row_of(self, call: Call) -> dict[str, Any]:
        """The columns that say which call a row is about."""
        return {"forward_id": call.id, "name": call.name, **self.location(call)}

    def location(self, call: Call) -> dict[str, Any]:
        """Where a call stands: source line, module, step, rank, thread; in backward, those of the forward call."""
        where = call.owner_site()
        return {
            "call_site": where.text(),
            "module": where.module_path(),
            "step": call.step,
            "thread": call.thread,
            "level": call.level,
            "phase": "backward" if call.in_backward else "forward",
            "forward_name": call.origin.name if call.in_backward and call.origin is not None else call.node,
            **rank_info(),
        }

    def call_site_text(self, call: Call) -> str:
        """Where a call stands, for people: the source line, or the whole stack if asked for."""
        if self.settings.print_stack and not call.in_backward:
            return (call.where if call.where.stack else site.read(with_stack=True)).stack_text()
        return call.owner_site().text()

    def failure_row(self, call: Call | None, error: Exception) -> None:
        """The row of an error of the tool itself."""
        if self.results is not None and call is not None:
            problem = f"tool error: {type(error).__name__}: {error}"
            self.results.append({**self.row_of(call), "error_info": problem})


class LevelTool(Tool):
    """A tool with a setting `level`: it takes API calls, or at level aten the calls that reach the kernels.

    At level aten the API calls are context: calls inside them and inside their backward know whose they are. What
    torch.compile has compiled is one call at either level.
    """

    def read_settings(self) -> None:
        super().read_settings()
        # Where the list names no operator there is nothing to give context to, and API calls need not be seen at all.
        self.uses_api = not self.api_is_context or (
            self.api_functions != frozenset() and self._names_an_operator()
        )

    def _names_an_operator(self) -> bool:
        return any(self.names.match(name) for name in registered_operators())

    @property
    def uses_aten(self) -> bool:  # type: ignore[override]
        return bool(self.settings.level == "aten" and self.only is None)

    aten_everywhere = api_is_context = takes_operators_below = wants_ties = uses_aten  # type: ignore[assignment]

    def wants_api(self, name: str, func: Any) -> bool:
        if self.api_is_context and not name.startswith(COMPILED):
            return False
        return super().wants_api(name, func)

    def wants_parent(self, name: str) -> bool:
        return self.api_is_context or super().wants_parent(name)

    def wants_aten(self, name: str, func: Any) -> bool:
        return self.uses_aten and self.names.match(name)
