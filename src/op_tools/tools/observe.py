"""OpObserve: what every operator is called with and what it returns."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from op_tools import brief, describe
from op_tools.engine import Call
from op_tools.settings import ToolSettings, setting
from op_tools.tool import Tool


@dataclasses.dataclass(frozen=True)
class ObserveSettings(ToolSettings):
    """Settings of OpObserve."""

    list: str = setting(".*", "OP_OBSERVE_LIST", str, "operators to watch")
    disable_list: str = setting("", "OP_OBSERVE_DISABLE_LIST", str, "operators to leave out")
    level: str = setting("api", "OP_OBSERVE_LEVEL", str, "api, or aten for what reaches the kernels")


class OpObserve(Tool):
    """Notes shape, dtype, strides, device and values of the arguments and results of each call."""

    section = "observe"
    hook_name = "OpObserveHook"
    schema = ObserveSettings
    result_folder = "op_observe_result"
    result_file = "op_observe_info"
    columns: ClassVar = (
        "forward_id",
        "name",
        "input",
        "output",
        "call_site",
        "module",
        "step",
        "rank",
        "phase",
        "error_info",
    )
    takes_compiled = True

    @property
    def uses_api(self) -> bool:  # type: ignore[override]
        return self.settings.level == "api" or self.only is not None

    @property
    def uses_aten(self) -> bool:  # type: ignore[override]
        return self.settings.level == "aten"

    @property
    def aten_everywhere(self) -> bool:  # type: ignore[override]
        return self.uses_aten

    def wants_aten(self, name: str, func: Any) -> bool:
        return self.uses_aten and self.names.match(name)

    def opened(self) -> None:
        self.calls = 0

    def before(self, call: Call) -> None:
        self.say_applied(call.name)
        # In-place operators change their inputs: what went in is read before.
        if self.settings.verbose:
            call.notes[self] = describe.rows_of(call.name, "inputs", call.args, call.kwargs)
        else:
            call.notes[self] = brief.of_call(call.args, call.kwargs)

    def after(self, call: Call, result: Any) -> None:
        inputs = call.notes.pop(self)
        self.calls += 1
        if self.settings.verbose:
            self._print(call, inputs, result)
            inputs = brief.of_call(call.args, call.kwargs)
        row = {**self.row_of(call), "input": inputs, "output": brief.brief(result)}
        self.open_results().append(row)

    def _print(self, call: Call, inputs: Any, result: Any) -> None:
        from op_tools import tables

        rows = inputs + describe.rows_of(call.name, "outputs", (result,))
        self.say(f"{call.name}    forward_id: {call.id}\n{self.place_text(call)}")
        self.say(tables.describe_table(rows) + "\n")

    def closed(self) -> None:
        if self.results is not None:
            self.results.close()
            self.say(
                f"op_tools: OpObserve saw {self.calls} calls; arguments and results saved to {self.results.csv_path}"
            )
            self.results = None
