"""Result rows: the append-only log, its reader, and the CSV and sqlite views of it."""

from __future__ import annotations

import csv
import math
import os
import random
import shutil
import sqlite3
import threading
import time
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from op_tools.storage import CaptureError, CsvView, Log, read_log, write_csv, write_sqlite
from op_tools.storage import log as log_module
from op_tools.storage.log import MAGIC, RECORD
from op_tools.storage.log_reader import LogContents, LogReader, find_logs, read_header

pytestmark = pytest.mark.unit


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "torch.add", "forward_id": n, **more} for n in range(count)]


def written(folder: Path, values: list[dict[str, Any]], **options: Any) -> Path:
    with Log(folder, "autocompare", **options) as log:
        for row in values:
            log.append(row)
        return log.path


class TestLog:
    def test_rows_come_back(self, tmp_path: Path) -> None:
        values = [
            {"a": 1, "b": 2.5, "c": None, "d": "文", "e": [1, {"f": True}], "g": float("inf")},
            {"x": "y" * 9999},
        ]
        path = written(tmp_path, values, rank=1, world_size=2)
        found = read_log(path)
        assert found.rows == values and found.dropped_bytes == 0
        assert (found.header["rank"], found.header["pid"]) == (1, os.getpid())
        assert path.name.startswith("autocompare_rank1_") and f"pid{os.getpid()}_" in path.name
        assert find_logs(tmp_path, "autocompare") == [path] and find_logs(tmp_path, "auto") == []

    def test_the_header_alone(self, tmp_path: Path) -> None:
        before = time.time() * 1e6
        path = written(tmp_path, rows(5), about={"run_id": "r", "settings": {"a": "1"}})
        header = read_header(path)
        assert header == read_log(path).header and header["run_id"] == "r"
        assert before - 1 <= header["started_us"] <= time.time() * 1e6
        content = path.read_bytes()
        end = content.index(b"started_us")
        for torn in (b"", content[: len(MAGIC)], content[: len(MAGIC) + 3], content[:end], b"x" * 99):
            path.write_bytes(torn)
            assert read_header(path) == {}
        with pytest.raises(CaptureError):
            read_header(tmp_path / "missing.oplog")

    def test_nan_and_odd_values(self, tmp_path: Path) -> None:
        path = written(tmp_path, [{"a": math.nan, "b": Path("x"), 3: 1 << 80}])  # type: ignore[dict-item]
        (row,) = read_log(path).rows
        assert row == {"a": "nan", "b": "x", "3": str(1 << 80)}
        (row,) = read_log(written(tmp_path, [{"a": math.nan, "b": Path("x")}])).rows
        assert math.isnan(row["a"]) and row["b"] == "x"

    def test_torn_anywhere(self, tmp_path: Path) -> None:
        path = written(tmp_path, rows(20))
        whole = path.read_bytes()
        ends = [0]
        for cut in range(len(whole)):
            torn = tmp_path / "torn.oplog"
            torn.write_bytes(whole[:cut])
            found = read_log(torn)
            assert found.rows == rows(20)[: len(found.rows)]
            assert len(found.rows) >= ends[-1] - 1
            ends.append(len(found.rows))
        assert ends[-1] == 19 and sorted(ends) == ends
        torn.write_bytes(whole[:-1])
        assert 0 < read_log(torn).dropped_bytes < 100
        assert (len(read_log(path).rows), read_log(path).dropped_bytes) == (20, 0)

    def test_flipped_bits_cost_the_record_they_hit(self, tmp_path: Path) -> None:
        path = written(tmp_path, rows(10), about={"run_id": "r"})
        whole = path.read_bytes()
        chance = random.Random(3)
        for _ in range(200):
            content = bytearray(whole)
            content[chance.randrange(len(MAGIC), len(whole))] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            found = read_log(path)
            kept = [row["forward_id"] for row in found.rows]
            lost = sorted(set(range(10)) - set(kept))
            assert found.rows == [row for row in rows(10) if row["forward_id"] in kept], (
                "in order, and no other"
            )
            assert (found.header == {}, lost) in [(True, []), *((False, [number]) for number in range(10))]
            assert found.dropped_bytes > 0

    def test_reading_goes_on_behind_damage_of_any_size(self, tmp_path: Path) -> None:
        """A block of a disk lost in the middle of a log that is larger than what is read at once."""
        values = rows(3000, text="x" * 1000)
        path = written(tmp_path, values)
        whole = path.read_bytes()
        for start, lost in (
            (1_000_000, b"\0" * 4096),
            (1_040_000, random.Random(1).randbytes(300_000)),
            (900_000, b""),
        ):
            path.write_bytes(whole[:start] + lost + whole[start + (len(lost) or 5000) :])
            with LogReader(path) as reader:
                numbers = [row["forward_id"] for row in reader.rows()]
                assert numbers == sorted(set(numbers)) and numbers[0] == 0 and numbers[-1] == 2999
                missing = 3000 - len(numbers)
                size = len(lost) or 5000
                assert size // 1100 <= missing <= size // 1000 + 3, "only what the damage hit"
                assert 0 < reader.damaged_bytes == reader.dropped_bytes

    def test_a_record_without_a_row_is_dropped(self, tmp_path: Path) -> None:
        path = written(tmp_path, rows(2))
        with path.open("ab") as file:
            for payload in (b"\x01", b"\xc1", b"\x93\x01\x02\x03"):
                file.write(RECORD.pack(len(payload), zlib.crc32(payload)) + payload)
        with path.open("ab") as file:
            file.write(RECORD.pack(0, 0) + b"\0" * 50)
        found = read_log(path)
        assert found.rows == rows(2) and found.dropped_bytes == 3 * 8 + 6 + 8 + 50

    def test_huge_lengths_and_other_files_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.oplog"
        path.write_bytes(MAGIC + b"\xff\xff\xff\xff\0\0\0\0")
        assert read_log(path).rows == [] and read_log(path).dropped_bytes == 8
        path.write_bytes(b"name,allclose\n")
        with pytest.raises(CaptureError, match="not a log"):
            read_log(path)
        with pytest.raises(CaptureError, match="no such file"):
            read_log(tmp_path / "none.oplog")

    def test_the_timer_writes_out(self, tmp_path: Path) -> None:
        log = Log(tmp_path, "rows", sync_every=0.05)
        log.append({"n": 1})
        deadline = time.monotonic() + 5
        while not any(path.stat().st_size for path in find_logs(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert read_log(log.path).rows == [{"n": 1}]
        log.close()

    def test_two_logs_of_one_process_have_two_files(self, tmp_path: Path) -> None:
        paths = {written(tmp_path, rows(2)) for _ in range(3)}
        assert len(paths) == 3 and all(read_log(path).rows == rows(2) for path in paths)

    def test_a_timer_that_comes_after_the_end_makes_no_second_file(self, tmp_path: Path) -> None:
        log = Log(tmp_path, "rows")
        log.append({"n": 1})
        state = log._state
        log.close()
        state.flush()
        assert find_logs(tmp_path) == [log.path]
        assert read_log(log.path).rows == [{"n": 1}]

    @pytest.mark.parametrize("mended", [False, True])
    def test_a_full_disk_is_said_once_and_rows_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: bool
    ) -> None:
        said: list[str] = []
        log = Log(tmp_path, "rows", on_problem=said.append)
        log.append({"n": 1})
        log.flush()

        def full(*_: Any) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(log_module, "write_all", full)
        for number in range(5):
            log.append({"n": number})
            log.flush()
        path = log.path
        assert len(said) == 1 and "No space left" in said[0] and log.problem
        assert read_log(path).rows == [{"n": 1}]
        assert log.unwritten() == [{"n": number} for number in range(5)]
        if mended:
            monkeypatch.undo()
        log.close()
        assert log.complete == mended == (not log.unwritten())
        assert read_log(path).rows == [{"n": 1}, *([{"n": number} for number in range(5)] if mended else [])]
        assert len(said) == 1

    @pytest.mark.parametrize("start", [0, 3])
    def test_a_write_that_stops_half_way_leaves_whole_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
    ) -> None:
        log = Log(tmp_path, "rows", on_problem=lambda text: None)
        log.extend(rows(start))
        log.flush() if start else None
        real = os.writev

        def half(descriptor: int, pieces: Any) -> int:
            real(descriptor, [b"".join(pieces)[:100]])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "writev", half)
        log.extend(rows(2))
        log.flush()
        found = [read_log(path) for path in find_logs(tmp_path)]
        monkeypatch.undo()  # from here on the timer writes what waits
        assert found == [LogContents(rows(start), ANY)] * bool(start)
        log.close()
        assert read_log(log.path).rows == rows(start) + rows(2)

    def test_results_that_are_removed_begin_anew(self, tmp_path: Path) -> None:
        log = Log(tmp_path / "results", "rows")
        log.extend(rows(3))
        log.flush()
        shutil.rmtree(tmp_path / "results")
        log.append({"n": 1})
        log.close()
        (path,) = find_logs(tmp_path)
        assert log.complete and (read_log(path).rows, read_header(path)["name"]) == ([{"n": 1}], "rows")

    def test_rows_that_no_disk_takes_are_bounded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_module, "UNWRITTEN_BYTES", 5000)
        log = Log("/proc/nowhere", "rows", on_problem=lambda text: None)
        log.append({"n": 0})
        log.flush()
        log.extend(rows(1000))
        assert 20 < len(log.unwritten()) < 200 and not log.complete

    def test_threads_and_forks_lose_and_mix_nothing(self, tmp_path: Path) -> None:
        log = Log(tmp_path, "rows")
        log.append({"who": "parent", "n": -1})  # still in memory when the children are made

        def work(who: str) -> None:
            for number in range(500):
                log.append({"who": who, "n": number})

        threads = [threading.Thread(target=work, args=(f"thread{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                try:
                    work("child")
                    log.close()
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        for thread in threads:
            thread.join()
        path = log.path
        log.close()
        logs = find_logs(tmp_path)
        assert len(logs) == 3
        for found in logs:
            contents = read_log(found)
            assert contents.dropped_bytes == 0
            owners = {row["who"] for row in contents.rows}
            if found == path:
                assert owners == {"parent", "thread0", "thread1", "thread2", "thread3"}
                assert len(contents.rows) == 2001
                for thread in range(4):
                    own = [row["n"] for row in contents.rows if row["who"] == f"thread{thread}"]
                    assert own == list(range(500))
            else:
                assert (
                    contents.header["pid"] in children and owners == {"child"} and len(contents.rows) == 500
                )


class TestViews:
    COLUMNS = ("forward_id", "name", "allclose")

    def test_one_header_over_appends_and_restarts(self, tmp_path: Path) -> None:
        path = tmp_path / "sub" / "info.csv"
        for start in (0, 3):
            view = CsvView(path, self.COLUMNS)
            for number in range(start, start + 3):
                view.append([{"forward_id": number, "name": "a,b", "allclose": True, "other": 1}])
        lines = path.read_text().splitlines()
        assert lines[0] == "forward_id,name,allclose"
        assert lines[1:] == [f'{number},"a,b",True' for number in range(6)]

    def test_half_a_row_is_not_continued(self, tmp_path: Path) -> None:
        path = tmp_path / "info.csv"
        path.write_text("forward_id,name,allclose\n1,a,Tr")
        CsvView(path, self.COLUMNS).append([{"forward_id": 2, "name": "b", "allclose": True}])
        assert path.read_text().splitlines()[1:] == ["1,a,Tr", "2,b,True"]

    def test_other_columns_go_to_another_file(self, tmp_path: Path) -> None:
        path = tmp_path / "info.csv"
        CsvView(path, self.COLUMNS).append([{"forward_id": 1}])
        view = CsvView(path, ("name", "unit"))
        view.append([{"name": "x", "unit": "ms"}])
        assert view.path.name == "info-2.csv" and view.path.read_text() == "name,unit\nx,ms\n"
        assert path.read_text() == "forward_id,name,allclose\n1,,\n"

    def test_a_forked_child_has_its_own_csv(self, tmp_path: Path) -> None:
        view = CsvView(tmp_path / f"info_pid{os.getpid()}_now.csv", self.COLUMNS)
        view.append([{"forward_id": 1}])
        child = os.fork()
        if child == 0:
            try:
                view.append([{"forward_id": 2}])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        view.append([{"forward_id": 3}])
        assert view.path.read_text().split() == ["forward_id,name,allclose", "1,,", "3,,"]
        other = tmp_path / f"info_pid{child}_now.csv"
        assert other.read_text().split() == ["forward_id,name,allclose", "2,,"]

    def test_csv_of_logs(self, tmp_path: Path) -> None:
        logs = [written(tmp_path, rows(3, step=1)), written(tmp_path, [{"name": 'say "hi"', "new": [1, 2]}])]
        assert write_csv(logs, tmp_path / "all.csv") == 4
        with (tmp_path / "all.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        assert [row["name"] for row in found] == ["torch.add"] * 3 + ['say "hi"']
        assert found[2]["forward_id"] == "2" and found[3]["new"] == "[1, 2]" and found[3]["step"] == ""
        assert write_csv(logs, tmp_path / "some.csv", ["name"]) == 4
        assert (tmp_path / "some.csv").read_text().splitlines()[0] == "name"

    def test_sqlite_of_logs(self, tmp_path: Path) -> None:
        odd = 'x"; DROP TABLE rows; --'
        logs = [written(tmp_path, rows(3, big=1 << 63)), written(tmp_path, [{odd: 1, "nested": {"a": 1}}])]
        for _ in range(2):  # a second time replaces the first
            assert write_sqlite(logs, tmp_path / "all.sqlite") == 4
        with sqlite3.connect(tmp_path / "all.sqlite") as database:
            assert database.execute("SELECT sum(forward_id), count(*), max(pid) FROM rows").fetchone() == (
                3,
                4,
                os.getpid(),
            )
            nested = database.execute("SELECT nested FROM rows WHERE nested IS NOT NULL").fetchall()
            assert nested == [('{"a": 1}',)]
        assert write_sqlite([], tmp_path / "none.sqlite") == 0
