"""The operator tools of a run: what they are called, how they are started, and how they end.

A process that the program spawns gets the same tools; it and the other ranks of a job write their rows and leave the
summaries to the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dicore.settings import SettingError, read, variables_of
from dicore.suggestions import did_you_mean

if TYPE_CHECKING:
    from op_tools.tool import Tool

__all__ = ["RunConfig", "RunningTools", "UsageError", "offered", "tool_named"]


class UsageError(Exception):
    """What was asked for cannot be done; the message says what was expected."""


def offered() -> list[type[Tool]]:
    """The tools that can be turned on here, those of the user's OP_TOOLS_PATH too. Raises UsageError."""
    from op_tools import registry

    try:
        return [tool for tool in registry.tools() if tool.command_name]
    except registry.BadTool as error:
        raise UsageError(str(error)) from error


def tool_named(word: str, option: str = "--tool") -> type[Tool]:
    """The tool that a word means: its name or the name of its section. Raises UsageError."""
    by_name = {name: tool for tool in offered() for name in (tool.section, tool.command_name)}
    if word in by_name:
        return by_name[word]
    raise UsageError(
        f"{option} {word}: there is no such tool.{did_you_mean(word, by_name)} "
        f"The tools are: {', '.join(tool.command_name for tool in offered())}."
    )


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Which tools with which arguments. Plain data: it travels to the processes that the program spawns."""

    tools: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    mapping: bool = True

    @classmethod
    def of(
        cls, names: Sequence[str], results: str | None, settings: Sequence[str], mapping: bool = True
    ) -> RunConfig:
        """Check what was asked for. Raises UsageError."""
        tools = list(dict.fromkeys(tool_named(name) for name in names))
        arguments: dict[type[Tool], dict[str, Any]] = {tool: {} for tool in tools}
        for tool, given in arguments.items():
            # Whole, because a program may change its working folder before the first row is written.
            given["results"] = os.path.abspath(results or _results_of(tool))
        for text in settings:
            tool, name, value = _setting(text)
            if tool not in arguments:
                raise UsageError(
                    f"--set {text}: the tool {tool.command_name} is not on. Add --tool {tool.command_name}."
                )
            arguments[tool][name] = os.path.abspath(value) if name == "results" else value
        return cls(tuple((tool.command_name, tuple(arguments[tool].items())) for tool in tools), mapping)


def _results_of(tool: type[Tool]) -> str:
    """The folder that the environment, the settings file or the default names."""
    from op_tools.settings import ROOT, ToolSettings

    try:
        return read(ToolSettings, f"{ROOT}.{tool.section}", {})[0].results
    except SettingError as error:
        raise UsageError(f"{error}. `ditorch config` lists all that cannot be used.") from error


def _setting(text: str) -> tuple[type[Tool], str, Any]:
    """`tool.setting=value`, the value read as its variable would be."""
    left, equals, value = text.partition("=")
    owner, dot, name = left.strip().partition(".")
    if not equals or not dot:
        raise UsageError(f"--set {text}: expected tool.setting=value, such as time.top=20.")
    tool = tool_named(owner, "--set")
    fields = variables_of(tool.schema)
    if name not in fields:
        raise UsageError(
            f"--set {text}: {tool.command_name} has no setting {name}.{did_you_mean(name, fields)} It has: {', '.join(fields)}."
        )
    try:
        return tool, name, fields[name].parse(value)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--set {text}: {error}") from error


class RunningTools:
    """The tools of one process, started in order and stopped in the opposite one."""

    def __init__(self, config: RunConfig, *, quiet: bool = False) -> None:
        self.config = config
        self.started: list[Tool] = []
        self._pid = os.getpid()
        self._quiet = quiet

    def start(self) -> None:
        """Start all of them, or none: raises UsageError when one cannot be started."""
        for name, arguments in self.config.tools:
            try:
                tool_class = tool_named(name)
                tool = (_quiet(tool_class) if self._quiet else tool_class)(**dict(arguments))
                self.started.append(tool.start())
            except UsageError:
                raise
            except Exception as error:
                for started in self.started:
                    _silent(started).stop()
                raise UsageError(f"the tool {name} cannot be started: {error}") from error

    def stop(self) -> None:
        """Write what is pending and print the summaries. No error of a tool comes out."""
        for tool in reversed(self.started):
            try:
                # A child that the program has forked comes here too; the summaries are its parent's.
                (tool if os.getpid() == self._pid else _silent(tool)).stop()
            except Exception as error:
                with contextlib.suppress(OSError, ValueError):
                    print(
                        f"ditorch: {type(tool).__name__} could not be stopped: {type(error).__name__}: {error}",
                        file=sys.stderr,
                    )

    def stop_silently(self) -> None:
        """The same without a word: there was nothing to look at."""
        for tool in self.started:
            _silent(tool)
        self.stop()

    @property
    def folders(self) -> list[str]:
        """Where results were written, each folder once."""
        written = (
            tool.settings.results
            for tool in self.started
            if tool.result_folder and os.path.isdir(os.path.join(tool.settings.results, tool.result_folder))
        )
        return list(dict.fromkeys(written))


def _quiet(tool_class: type[Tool]) -> type[Tool]:
    """The same tool for another rank or a spawned process: only what it finds is said, and who says it."""

    class Quiet(tool_class):  # type: ignore[misc, valid-type]
        def say(self, text: str) -> None:
            if self.running:
                from op_tools.results import rank_info

                rank = rank_info()["rank"]
                who = f"rank {rank}" if rank else f"process {os.getpid()}"
                super().say(f"[{who}] {text}")

        def say_applied(self, name: str) -> None:
            pass

    Quiet.__name__, Quiet.__qualname__ = tool_class.__name__, tool_class.__qualname__
    return Quiet


def _silent(tool: Tool) -> Tool:
    """A started tool that says nothing any more."""
    tool.say = lambda text: None  # type: ignore[method-assign]
    return tool


# -- processes that the program starts -------------------------------------------------------------------------

_IN_CHILD = """
import sys
try:
    from _ditorch import run_tools
    run_tools.start_in_child(run_tools.RunConfig(tools, mapping))
except Exception as error:
    print(f"ditorch: this process runs without the tools: {type(error).__name__}: {error}", file=sys.stderr)
"""


class _StartsInChild:
    """Unpickled in a spawned process before it imports the program: starts there what runs here."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_IN_CHILD, {"tools": self.config.tools, "mapping": self.config.mapping})


_in_this_child: list[RunningTools] = []


def follow_spawned(config: RunConfig) -> None:
    """Give the processes that multiprocessing spawns the mapping and the tools of this one."""
    from multiprocessing import spawn

    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {"ditorch": _StartsInChild(config), **original(name)}

    spawn.get_preparation_data = get_preparation_data


def follow_forked(tools: RunningTools) -> None:
    """In the processes that multiprocessing forks the tools go on; they leave by os._exit, and the tools end before that."""
    from multiprocessing import util

    util.register_after_fork(tools, _stop_at_the_end)


def start_in_child(config: RunConfig) -> None:
    """What a spawned process does first; the tools end with it."""
    from _ditorch.session import of_process

    session = of_process()
    session.held = not config.mapping
    session.start(quiet=True)
    if config.tools:
        tools = RunningTools(config, quiet=True)
        tools.start()
        _in_this_child.append(tools)
        # Such a process leaves by os._exit, after its finalizers. One that comes from a fork server forgets those that were
        # registered before it began.
        _stop_at_the_end(tools)
        follow_forked(tools)
    follow_spawned(config)


def _stop_at_the_end(tools: RunningTools) -> None:
    from multiprocessing import util

    util.Finalize(None, tools.stop, exitpriority=100)
