"""A suite whose cases do to their worker what the name of their group says. Workers import this module."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dicore.conformance.cases import Case, DecidedCase, case_id
from dicore.conformance.results import CaseResult
from dicore.conformance.suite import Suite, SuiteError, VendorVersion

FUNCTION = "trapNeg"


class TrapSource:
    """Groups of four cases; before case 2 of a group whose name says so something happens."""

    name = "trap"

    def __init__(self, groups: tuple[str, ...], folder: Path) -> None:
        self.groups_, self.folder = groups, folder

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        return [g for g in self.groups_ if functions is None or FUNCTION in functions or g in functions]

    def cases(self, group: str) -> Iterator[Case]:
        (self.folder / "pid").write_text(str(os.getpid()))
        if group == "resumable":
            return map(self._case, (group,) * 4, range(4))
        return self._cases(group)

    def _cases(self, group: str) -> Iterator[Case]:
        for number in range(4):
            if number == 2:
                self._spring(group)
            if group == "decided" and number:
                status = "skipped" if number == 1 else "fail"
                yield DecidedCase(case_id(self.name, group, number), "", "int8", "", f"no {number}", status)
            else:
                yield self._case("", number, group)

    def _case(self, raises: str, number: int, group: str = "") -> Case:
        if raises and number == 1:
            raise ValueError("no such sample")
        dtype = "float32" if number % 2 == 0 else "int8"
        return Case(case_id(self.name, group or raises, number), FUNCTION, dtype, "odd" * (number % 2))

    def _spring(self, group: str) -> None:
        mark = self.folder / "crashed"
        if group == "always" or (group == "once" and not mark.exists()):
            mark.touch()
            os._exit(3)
        if group == "raises":
            raise ValueError("no such sample")


class TrapSuite(Suite):
    """Case 1 of a group does what the group is called; `opened` counts the workers."""

    name = "trap"
    example_case = "trap:plain:0"

    def __init__(self, *groups: str, folder: Path) -> None:
        super().__init__("/somewhere/libtrap.so", [TrapSource(groups, folder)])
        self.folder = folder

    def functions(self) -> frozenset[str]:
        return frozenset({FUNCTION, "trapOther"})

    def versions(self) -> dict[str, object]:
        return {"trap": "9"}

    def prepare(self) -> VendorVersion:
        if (self.folder / "gone").exists():
            raise SuiteError("libtrap.so is gone")
        with (self.folder / "opened").open("a") as stream:
            stream.write("x")
        self.dead = False
        return VendorVersion("trapper", "1.0")

    def run(self, case: Case) -> CaseResult:
        result = CaseResult(case.id, case.function, case.dtype, case.label, "pass")
        group, number = case.id.split(":")[1:]
        if self.dead:
            result.set("fail", "the context is dead")
        elif number == "1":
            self._spring(group, result)
        return result

    def _spring(self, group: str, result: CaseResult) -> None:
        match group:
            case "aborts" | "aborts again":
                print("out of registers", file=sys.stderr, flush=True)
                os.abort()
            case "hangs":
                time.sleep(600)
            case "errs":
                raise KeyError("nothing there")
            case "dies":
                self.dead = True
                result.set("fail", "illegal memory access")
            case "fails":
                result.set("fail", "wrong")

    def worker_usable(self, result: CaseResult) -> bool:
        return not self.dead

    def close(self) -> None:
        (self.folder / "closed").touch()


class FragileSuite(TrapSuite):
    """Every case of the group `fragile` ends its worker; two are enough."""

    max_crashes = 2

    def run(self, case: Case) -> CaseResult:
        if ":fragile:" in case.id:
            os._exit(7)
        return super().run(case)
