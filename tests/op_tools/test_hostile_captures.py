"""Files that somebody made to do harm: refused with a clear message, nothing run, nothing allocated beyond a bound."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import xxhash
from crafted_captures import (
    BLOB_REFERENCES,
    CODE_PICKLES,
    CONTAINERS,
    COSTLY_PICKLES,
    TENSOR_PICKLES,
    TREE_PICKLES,
    Layout,
    capture_of,
    chain,
    made_by,
    pickled_with,
    reference,
    tensor,
    text,
    with_bytes,
    zipped,
)

from op_tools.storage import (
    CallInfo,
    CaptureDamaged,
    CaptureError,
    CaptureMissing,
    CaptureRefused,
    CaptureStore,
    CaptureUnsupported,
    load,
)

pytestmark = pytest.mark.unit

# What a refusal may cost, whatever the file claims.
MEMORY_BOUND = 32 << 20


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal_of(path: Path) -> CaptureError:
    """The error of a file that must be refused: quickly, within bounds, without a trace, and understandably."""
    tracemalloc.start()
    try:
        with pytest.raises(CaptureError) as caught:
            load(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BOUND
    finally:
        tracemalloc.stop()
    assert not Path("OWNED").exists() and not (path.parent / "OWNED").exists()
    error = caught.value
    for part in (error.problem, error.expected, error.remedy):
        assert 5 < len(part) < 400
    assert str(path.name) in str(error) or "blobs" in str(error)
    return error


@pytest.mark.parametrize("name", CODE_PICKLES)
def test_code_is_refused(tmp_path: Path, name: str) -> None:
    error = refusal_of(zipped(tmp_path / "input.pth", CODE_PICKLES[name]))
    assert isinstance(error, CaptureRefused)


def test_the_crafted_code_would_run_elsewhere(tmp_path: Path) -> None:
    """The files are what they claim to be: an ordinary unpickler runs them."""
    code = f"import pickle; pickle.loads({CODE_PICKLES['os.system']!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "OWNED").exists()


@pytest.mark.parametrize("name", TENSOR_PICKLES)
def test_tensors_are_held_against_their_bytes(tmp_path: Path, name: str) -> None:
    error = refusal_of(zipped(tmp_path / "input.pth", TENSOR_PICKLES[name]))
    assert isinstance(error, (CaptureRefused, CaptureDamaged))


def test_a_sound_tensor_of_the_same_making_is_read(tmp_path: Path) -> None:
    data = struct.pack("<16f", *range(16))
    (found,) = load(zipped(tmp_path / "input.pth", capture_of(tensor()), data))["args"]
    assert found.tolist() == torch.arange(16.0).reshape(4, 4).tolist()
    pickled = capture_of(tensor(offset=15, shape=(2, 0), stride=(1, 1)))
    assert load(zipped(tmp_path / "input.pth", pickled, data))["args"][0].shape == (2, 0)


@pytest.mark.parametrize("name", TREE_PICKLES)
def test_trees_that_make_no_sense(tmp_path: Path, name: str) -> None:
    error = refusal_of(zipped(tmp_path / "input.pth", TREE_PICKLES[name]))
    assert isinstance(error, CaptureRefused)


@pytest.mark.parametrize("name", COSTLY_PICKLES)
def test_few_bytes_that_would_cost_much(tmp_path: Path, name: str) -> None:
    path = zipped(tmp_path / "input.pth", COSTLY_PICKLES[name])
    assert path.stat().st_size < 2 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(CaptureError):
        load(path)
    # Most of it would be spent inside single calls of C (a hash, a comparison), where no step can be counted. Processor time,
    # not the wall's; a reader without limits takes 20 s for the cheapest of these, and hours for most.
    assert time.process_time() - start < 15
    # What torch allocates is not traced below, but shows here where it is more than the process ever had.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10
    refusal_of(path)


def test_sound_values_of_the_same_making_are_read(tmp_path: Path) -> None:
    """What the limits above must not take away from files that torch.save wrote."""
    foreign = {
        "args": (
            torch.Size([2, 3]),
            {1: "a", (2, "b"): "c", None: 0, 2.5: b"bytes", False: b"", b"k": 1},
            {3, "x", (4, 5)},
            OrderedDict([("k", [1, 2]), (7, "y")]),
            slice(1, None, 2),
            range(1 << 60),
            [b"same", b"same", b"s", b"s"] * 50,
            torch.device("cpu"),
            torch.float16,
            1 + 2j,
        ),
        "kwargs": {},
    }
    torch.save(foreign, tmp_path / "input.pth")
    assert load(tmp_path / "input.pth")["args"] == foreign["args"]
    torch.save({"args": (torch.ones(3).to_sparse(), torch.eye(3).to_sparse_csr())}, tmp_path / "input.pth")
    coo, csr = load(tmp_path / "input.pth")["args"]
    assert torch.equal(coo.to_dense(), torch.ones(3)) and torch.equal(csr.to_dense(), torch.eye(3))
    pickled = capture_of(made_by("torch.return_types", "max", b"K\x01K\x02\x86"))
    assert load(zipped(tmp_path / "input.pth", pickled))["args"][0] == (1, 2)


@pytest.mark.parametrize("name", BLOB_REFERENCES)
def test_blob_references(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "op_capture_results"
    (folder / "op/1/2/now").mkdir(parents=True)
    (folder / "blobs").mkdir()
    (tmp_path / "secret").write_bytes(b"s" * 16)
    (folder / "blobs" / ("a" * 32)).symlink_to(tmp_path / "secret")
    (folder / "blobs" / "linked.pack").symlink_to(tmp_path / "secret")
    (folder / "blobs" / ("b" * 32)).write_bytes(b"x" * 16)
    (folder / "blobs" / "a.pack").write_bytes(b"x" * 16)
    error = refusal_of(zipped(folder / "op/1/2/now/input.pth", pickled_with(BLOB_REFERENCES[name])))
    assert b"ssss" not in str(error).encode(), "nothing of a file outside is shown"


def test_a_sound_reference_of_the_same_making_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "op_capture_results"
    (folder / "op/1/2/now").mkdir(parents=True)
    (folder / "blobs").mkdir()
    content = struct.pack("<4f", 1, 2, 3, 4)
    digest = xxhash.xxh3_128_hexdigest(content)
    (folder / "blobs" / digest).write_bytes(content)
    path = zipped(folder / "op/1/2/now/input.pth", pickled_with(reference(hash=digest)))
    assert load(path)["args"][0].tolist() == [1.0, 2.0, 3.0, 4.0]


def sound(tmp_path: Path) -> Path:
    paths: list[str] = []
    with CaptureStore(tmp_path / "sound", on_saved=paths.append) as store:
        store.put(CallInfo("a", 1), "input", (torch.arange(200.0), "text"), {"k": [1, 2]})
    return Path(paths[0])


# Container -> what is wrong with it. An accident is told as damage, what only intent makes is refused.
_DAMAGED = {
    "nothing": "does not start like a capture",
    "one byte": "does not start like a capture",
    "text": "does not start like a capture",
    "appended": "no directory at its end",
    "zip comment": "no directory at its end",
    "too few records": "more directory entries than it says",
    "directory elsewhere": "says its directory is at 0 ",
    "directory behind the end": "not where the file ends",
    "huge directory": "with 2147483647 bytes",
    "huge record": "declares 2147483648 bytes for 'archive/data/0'",
    "record in another place": "more than it has",
    "record behind the end": "'archive/data/0' is behind its end",
    "64-bit record without sizes": "no 64-bit sizes",
    "directory entry broken": "broken directory entry",
    "checksum": "do not match their checksum",
}
_REFUSED = {
    "too many records": "declares 65534 records",
    "compressed": "compressed or encrypted",
    "encrypted": "compressed or encrypted",
    "parent folder": "a record called '../",
    "absolute name": "a record called '/",
    "backslash": "a record called 'archive\\\\",
    "same name twice": "two names",
    "name that is not text": "a record called b'",
}


def test_every_container_has_its_complaint(tmp_path: Path) -> None:
    assert _DAMAGED.keys() | _REFUSED.keys() == CONTAINERS.keys()
    found = load(sound(tmp_path))  # what they are made of is read
    assert found["args"][0].equal(torch.arange(200.0)) and found["kwargs"] == {"k": [1, 2]}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(tmp_path: Path, name: str) -> None:
    original = sound(tmp_path).read_bytes()
    content = CONTAINERS[name](Layout(original))
    assert content != original
    path = tmp_path / "input.pth"
    path.write_bytes(content)
    error = refusal_of(path)
    assert type(error) is (CaptureRefused if name in _REFUSED else CaptureDamaged)
    assert (_REFUSED | _DAMAGED)[name] in error.problem


def test_truncated_everywhere(tmp_path: Path) -> None:
    content = sound(tmp_path).read_bytes()
    path = tmp_path / "input.pth"
    for cut in {*range(0, len(content), 37), *range(len(content) - 60, len(content))}:
        path.write_bytes(content[:cut])
        with pytest.raises(CaptureDamaged):
            load(path)


def test_flipped_bytes_never_give_other_values(tmp_path: Path) -> None:
    content = sound(tmp_path).read_bytes()
    right = load(sound(tmp_path))
    path = tmp_path / "input.pth"
    for position in range(0, len(content), 11):
        path.write_bytes(with_bytes(content, position, bytes([content[position] ^ 0x55])))
        try:
            found = load(path)
        except CaptureError:
            continue
        assert torch.equal(found["args"][0], right["args"][0]) and found["kwargs"] == right["kwargs"], (
            position
        )


def test_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "input.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", capture_of(tensor()))
        archive.writestr("archive/data/0", b"\0" * (64 << 20))
    assert path.stat().st_size < 1 << 20
    assert "compressed" in str(refusal_of(path))


def test_what_the_loader_of_torch_lets_through(tmp_path: Path) -> None:
    """Why captures are not read with torch.load(weights_only=True): small forms of what must not become large."""
    deflated, tall = tmp_path / "deflated.pth", tmp_path / "tall.pth"
    size = 4 << 20
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", capture_of(tensor(size // 4, shape=(size // 4,), stride=(1,))))
        archive.writestr("archive/data/0", bytes(size))
        archive.writestr("archive/version", b"3\n")
    assert deflated.stat().st_size < size // 500
    assert torch.load(deflated, weights_only=True)["args"][0].untyped_storage().nbytes() == size
    assert "compressed" in str(refusal_of(deflated))
    # Hashing a tuple of (x, x) hashes x twice: every level of the key, five bytes in the file, doubles the cost.
    levels = 12
    zipped(tall, capture_of(b"}" + chain(levels) + b"Ns"))
    (key,) = torch.load(tall, weights_only=True)["args"][0]
    hashed = 0
    pending = [key]
    while pending:
        hashed += 1
        found = pending.pop()
        pending += found if isinstance(found, tuple) else ()
    assert hashed >= 2**levels and tall.stat().st_size < 600
    assert isinstance(refusal_of(tall), CaptureRefused)


def test_overlapping_records(tmp_path: Path) -> None:
    """One body, listed a thousand times: the form of a bomb that needs no compression."""
    path = zipped(tmp_path / "input.pth", capture_of(tensor()))
    content = path.read_bytes()
    end = len(content) - 22
    size, directory = struct.unpack_from("<II", content, end + 12)
    entries = content[directory : directory + size]
    first = entries[: entries.index(b"PK\1\2", 4)]
    local = content[: content.index(b"PK\3\4", 4)]
    count = 50
    many, body = b"", b""
    for n in range(count):
        name = b"archive/d%07d" % n
        body += local[:26] + struct.pack("<HH", len(name), 0) + name
    body += local[30 + len(b"archive/data.pkl") :]
    position = 0
    for n in range(count):
        name = b"archive/d%07d" % n
        size_left = len(body) - position - 30 - len(name)
        entry = with_bytes(first[:46], 20, struct.pack("<II", size_left, size_left))
        entry = with_bytes(entry, 28, struct.pack("<H", len(name)))
        many += with_bytes(entry, 42, struct.pack("<I", position)) + name
        position += 30 + len(name)
    path.write_bytes(
        body + many + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(many), len(body), 0)
    )
    assert "overlap" in str(refusal_of(path))


def test_huge_pickle(tmp_path: Path) -> None:
    path = zipped(tmp_path / "input.pth", capture_of(text("x" * (20 << 20))))
    assert "at most" in str(refusal_of(path))


def test_many_records(tmp_path: Path) -> None:
    records = {f"data/{n}": b"" for n in range(1, 25_000)}
    assert "records" in str(refusal_of(zipped(tmp_path / "input.pth", capture_of(tensor()), **records)))


def test_holes(tmp_path: Path) -> None:
    """A terabyte that takes no room on the disk takes none in memory either."""
    path = tmp_path / "input.pth"
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        try:
            file.truncate(1 << 40)
        except OSError:
            pytest.skip("this file system has no files of a terabyte")
    assert "holes" in str(refusal_of(path))


def test_links_and_other_files(tmp_path: Path) -> None:
    real = sound(tmp_path)
    link = tmp_path / "input.pth"
    link.symlink_to(real)
    assert isinstance(refusal_of(link), CaptureRefused)
    link.unlink()
    os.mkfifo(link)
    assert "regular" in str(refusal_of(link))
    link.unlink()
    link.mkdir()
    assert "regular" in str(refusal_of(link))
    with pytest.raises(CaptureMissing):
        load(tmp_path / "none.pth")
    folder = tmp_path / "linked"
    folder.symlink_to(real.parent)  # a folder the user chose may be a link
    assert load(folder / "input.pth")["args"][1] == "text"


def test_other_formats(tmp_path: Path) -> None:
    path = tmp_path / "input.pth"
    path.write_bytes(pickle.dumps({"args": (), "kwargs": {}}))
    assert "bare pickle" in str(refusal_of(path))
    buffer = io.BytesIO()
    torch.save({"args": (torch.ones(2),), "kwargs": {}}, buffer, _use_new_zipfile_serialization=False)
    path.write_bytes(buffer.getvalue())
    assert "torch.save" in str(refusal_of(path))
    pickled = pickle.dumps({"args": (), "kwargs": {}, "__op_tools__": {"format": 99}}, protocol=2)
    assert isinstance(refusal_of(zipped(path, pickled)), CaptureUnsupported)
    assert isinstance(refusal_of(zipped(path, capture_of(tensor()), byteorder=b"big")), CaptureUnsupported)


def test_blobs_that_are_not_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    path = zipped(tmp_path / "a/b/input.pth", pickled_with(reference()))
    assert "op-tools export" in str(refusal_of(path))


def test_so_many_different_files_are_tried(tmp_path: Path) -> None:
    tables = (CODE_PICKLES, TENSOR_PICKLES, TREE_PICKLES, COSTLY_PICKLES)
    pickles = {content for table in tables for content in table.values()}
    pickles |= {pickled_with(value) for value in BLOB_REFERENCES.values()}
    layout = Layout(sound(tmp_path).read_bytes())
    containers = {change(layout) for change in CONTAINERS.values()}
    # Beside those that the tests above make themselves, and the damaged ones of test_replay_damage.py.
    assert len(pickles) + len(containers) >= 150
