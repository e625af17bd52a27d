"""Reading captures of both stores and plain `torch.save({"args": ..., "kwargs": ...})` files.

Nothing in a file is run, imported or believed: see archive.py (the container) and unpickle.py (the tree).
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import xxhash

from op_tools.storage.archive import MAX_PICKLE, Archive, open_regular, read_at, require_little_endian
from op_tools.storage.blobs import FOLDER
from op_tools.storage.call_info import FORMAT_VERSION
from op_tools.storage.constructors import DTYPES, Malformed, tensor_over
from op_tools.storage.container import container
from op_tools.storage.disk import FileTree
from op_tools.storage.errors import CaptureDamaged, CaptureMissing, CaptureRefused, CaptureUnsupported, shown
from op_tools.storage.files import described
from op_tools.storage.plain import plain, restore
from op_tools.storage.snapshot import TAG, tensor_tree, without_graph
from op_tools.storage.unpickle import Unpickler

MAX_NESTING = 64
MAX_VALUES = 2_000_000
_HASH = re.compile(r"[0-9a-f]{32}\Z")
_PACK = re.compile(r"[A-Za-z0-9_.-]{1,150}\.pack\Z")
# How far above a file its `blobs` folder may be: op / process / purpose / id / time / side.
_LEVELS = 8
_AGAIN = "Capture the call again."


def load(path: str | Path) -> dict[str, Any]:
    """The capture in a .pth file: {"args": tuple, "kwargs": dict, "__op_tools__": header (empty for foreign files)}.

    All tensors are on the CPU; `header["devices"]` says where they were. Values that could not be captured are Opaque
    objects. Raises a CaptureError for anything that is not a sound capture.
    """
    path = _within_its_folder(Path(path))
    tree, header = _read_tree(path)
    try:
        restored = restore({"args": tree["args"], "kwargs": tree["kwargs"]})
    except (ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise _refused(path, str(error)[:200]) from None
    if not isinstance(restored["kwargs"], dict):
        raise _refused(path, "its kwargs are not a dict")
    return {"args": tuple(restored["args"]), "kwargs": restored["kwargs"], TAG: header}


def _within_its_folder(path: Path) -> Path:
    """The file itself, its folder's links followed. A link in place of the file could lead anywhere: refused later."""
    try:
        return Path(os.path.realpath(path.parent)) / path.name
    except OSError:
        return path


def _refused(path: Path, problem: str) -> CaptureRefused:
    return CaptureRefused(path, problem, "a capture: a dict with 'args' and 'kwargs'", _AGAIN)


def _read_tree(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """args and kwargs as plain data with tensors, and the header."""
    with Archive(path) as archive:
        require_little_endian(archive)
        tree = Unpickler(archive, archive.read("data.pkl", most=MAX_PICKLE)).load()
    _bound_nesting(path, tree)
    if not isinstance(tree, dict):
        # torch.save(result) alone: a bare tensor or tuple, as some tools keep outputs.
        tree = {"args": tree if isinstance(tree, tuple) else (tree,), "kwargs": {}}
    header = tree.get(TAG, {})
    if not isinstance(header, dict):
        raise _refused(path, "its header is not a dict")
    if header.get("format", FORMAT_VERSION) != FORMAT_VERSION:
        remedy = "Read it with the version of op_tools that wrote it."
        problem = f"has format {shown(header['format'])}"
        raise CaptureUnsupported(path, problem, f"format {FORMAT_VERSION}", remedy)
    args, kwargs = tree.get("args"), tree.get("kwargs", {})
    if not isinstance(args, tuple | list) or not isinstance(kwargs, dict):
        raise _refused(path, "has no 'args' and 'kwargs'")
    blobs = _Blobs(path)
    return {"args": blobs.filled(args), "kwargs": blobs.filled(kwargs)}, header


def _bound_nesting(path: Path, tree: Any) -> None:
    """Refuse trees that would exhaust the stack, or that contain themselves, before anything walks them."""
    level, seen = [tree], 0
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for item in level:
            if not isinstance(item, dict | tuple | list):
                continue
            seen += len(item)
            if seen > MAX_VALUES:  # before they are copied: one long list can occur many times
                raise _refused(path, f"has more than {MAX_VALUES:,} values")
            below.extend(item.values() if isinstance(item, dict) else item)
        if not below:
            return
        level = below
    raise _refused(path, f"is nested more than {MAX_NESTING} levels deep")


class _Blobs:
    """Resolves the references of one file; a reference that occurs twice gives one tensor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder: Path | None = None
        self._made: dict[int, torch.Tensor] = {}

    def filled(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is tuple:
            return tuple([self.filled(item) for item in tree])
        if kind is list:
            return [self.filled(item) for item in tree]
        if isinstance(tree, dict):
            if tree.get(TAG) == "tensor":
                if id(tree) not in self._made:
                    self._made[id(tree)] = self._tensor(tree)
                return self._made[id(tree)]
            return {key: self.filled(item) for key, item in tree.items()}
        return tree

    def _tensor(self, reference: dict[str, Any]) -> torch.Tensor:
        digest, pack = reference.get("hash"), reference.get("pack")
        offset, nbytes = reference.get("offset"), reference.get("nbytes")
        dtype = reference.get("dtype")
        if not isinstance(digest, str) or not _HASH.match(digest):
            raise _refused(self._path, f"refers to a blob called {shown(digest)}, which is no hash")
        if not isinstance(pack, str) or (pack and not _PACK.match(pack)):
            raise _refused(self._path, f"refers to a pack called {shown(pack)}")
        if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes < 0:
            raise _refused(self._path, f"refers to bytes {shown(offset)} + {shown(nbytes)}")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise _refused(self._path, f"has a tensor of dtype {shown(dtype)}")
        content = self._content(digest, pack, offset, nbytes) if nbytes else bytearray()
        shape, stride = reference.get("shape"), reference.get("stride")
        try:
            return tensor_over(content, DTYPES[dtype], 0, shape, stride, reference.get("requires_grad"))
        except Malformed as problem:
            raise _refused(self._path, str(problem)) from None

    def _content(self, digest: str, pack: str, offset: int, nbytes: int) -> bytearray:
        blob = self._blobs_folder() / (pack or digest)
        descriptor, size = open_regular(blob)
        try:
            if offset + nbytes > size:
                problem = f"has {size} bytes, and {self._path} refers to {offset} + {nbytes}"
                raise CaptureDamaged(blob, problem, "all bytes that are referred to", _AGAIN)
            content = read_at(descriptor, offset, nbytes)
        finally:
            os.close(descriptor)
        if xxhash.xxh3_128_hexdigest(content) != digest:
            problem = f"its bytes at {offset} are not those of {digest}"
            raise CaptureDamaged(blob, problem, "intact bytes", _AGAIN)
        return content

    def _blobs_folder(self) -> Path:
        if self._folder is None:
            for above in list(self._path.parents)[1 : _LEVELS + 1]:
                if (above / FOLDER).is_dir() and not (above / FOLDER).is_symlink():
                    self._folder = above / FOLDER
                    break
            else:
                raise CaptureMissing(
                    self._path,
                    "refers to blobs, and there is no folder 'blobs' above it",
                    "the folder op_capture_results as a whole",
                    "Copy the whole folder, or make complete files of it first: op-tools export DIR OUT.",
                )
        return self._folder


def export(source: str | Path, target: str | Path) -> int:
    """Copy a tree of captures to `target`, every .pth complete in itself; the number of files written."""
    source, target = Path(source), Path(target)
    output = FileTree(str(target.absolute()), incoming=".incoming")
    count = 0
    try:
        for folder, folders, names in os.walk(source):
            folders[:] = sorted(name for name in folders if name != FOLDER and not name.startswith("."))
            for name in sorted(names):
                if name.endswith(".pth") and not name.startswith("."):
                    path = Path(folder) / name
                    _export_one(path, path.relative_to(source).as_posix(), output)
                    count += 1
    finally:
        output.close()
    return count


def _export_one(path: Path, relative: str, output: FileTree) -> None:
    tree, header = _read_tree(_within_its_folder(path))
    saved = cache(tensor_tree)  # by identity: a tensor that occurs twice stays one
    with without_graph():
        tree = {part: _with_snapshots(tree[part], saved) for part in ("args", "kwargs")}
    header = {**header, "store": "files"}
    path = path.with_name(path.name + ".json")
    description = path.read_bytes() if path.is_file() else described({**header, **tree})
    output.write_described(relative, [description], container({**tree, TAG: header}))


def _with_snapshots(tree: Any, saved: Any) -> Any:
    """Like plain(), for a tree that is plain already: its tags stay as they are."""
    if isinstance(tree, torch.Tensor):
        return saved(tree)
    if isinstance(tree, dict):
        return {key: _with_snapshots(item, saved) for key, item in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(_with_snapshots(item, saved) for item in tree)
    return plain(tree, tensor=saved)
