"""A device's file is read with care: a wrong key or value is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from _ditorch.torch_tests import device_file
from _ditorch.torch_tests.device_file import line_of

GOOD = """extends = "dipu"

[opinfo]
dtypes = ["float32", "int64"]

[[opinfo.known]]
op = "sin"
kind = "gap"
reason = "planted"

[[opinfo.known]]
op = "cos"
kind = "gap"
reason = \"\"\"
[[opinfo.known]] is no header here\"\"\"

[source]
files = ["test_torch.py"]

[[source.skip]]
case = ".*"
reason = "planted"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_a_file_of_ones_own_adds_to_the_base_and_to_what_it_extends(tmp_path: Path) -> None:
    found = device_file.load("anything", written(tmp_path, GOOD))
    assert "empty" in found.opinfo.undefined_values
    assert found.opinfo.dtypes == ["float32", "int64"]
    assert found.source.files == ["test_torch.py"]
    ops = [entry.op for entry in found.opinfo.known]
    assert "jiterator_.*" in ops and ops[-2:] == ["sin", "cos"] and len(ops) > 6
    alone = device_file.load("dipu", written(tmp_path, GOOD.replace('extends = "dipu"', "")))
    assert len(alone.opinfo.known) < len(found.opinfo.known)


@pytest.mark.parametrize("device", device_file.known_devices())
def test_the_files_that_come_with_the_package_are_well_formed(device: str) -> None:
    assert "empty" in device_file.load(device).opinfo.undefined_values


def test_a_device_without_a_file_has_the_base() -> None:
    found = device_file.load("no_such_device")
    assert (found.opinfo.dtypes_of, found.opinfo.known != []) == (None, True)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "gap"', 'kind = "excuse"', r"line 8, opinfo\.known\[0\]\.kind: Invalid enum value 'excuse'"),
        ('reason = "planted"\n\n[[opinfo', 'reason = ""\n\n[[opinfo', r"line 9, opinfo\.known\[0\]\.reason"),
        ('op = "cos"', 'op = "("', r"line 12, opinfo\.known\[1\]\.op: '\(' is no pattern"),
        (
            'op = "cos"',
            'op = "cos"\ncolour = 1',
            r"line 13, opinfo\.known\[1\]\.colour: .*unknown field `colour`",
        ),
        ('op = "cos"\n', "", r"line 11, opinfo\.known\[1\]: .*missing required field `op`"),
        ('"float32"', '"f32"', r"line 4, opinfo\.dtypes\[0\]: no dtype is called 'f32'"),
        (
            'files = ["test_torch.py"]',
            "files = 3",
            r"line 18, source\.files: Expected `array \| null`, got `int`",
        ),
        ('extends = "dipu"', 'extends = "abacus"', "extends = 'abacus': no such device. Known: cuda, dipu"),
        ("[opinfo]", "[opinfo", "is not TOML: .*line 3"),
        ("[source]", "[sauce]", r"line 17, sauce: .*unknown field `sauce`"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(device_file.DeviceFileError, match=said) as raised:
        device_file.load("dipu", path)
    assert str(path) in str(raised.value)


def test_texts_over_several_lines_hide_nothing_from_the_reader_of_lines() -> None:
    assert line_of(GOOD, "opinfo.known[1].reason") == 14
    assert line_of(GOOD, "source.skip[0].case") == 21
    assert line_of(GOOD, "no.such.key") is None
