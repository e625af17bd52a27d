"""The file of scales by which LMDeploy's caches of 8 bits are filled. The variable and the format are fixed by LMDeploy."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["VARIABLE", "CacheScaleError", "LayerScales", "Scale", "layer_scales", "recorded_scales"]

VARIABLE = "ASCEND_QUANT_RECORD_FILE"
_INSTEAD = "Or use quant_policy=0, which needs none"
_PAIR = re.compile(r"scale:\s*([^\s,}]+)[\s,]*offset:\s*([^\s,}]+)")


class CacheScaleError(ValueError):
    """The scales of 8-bit caches cannot be had: what was wrong, what was expected, what to do."""


class Scale(NamedTuple):
    """A number x is kept as round(x / scale + offset), from -128 to 127."""

    scale: float
    offset: int


class LayerScales(NamedTuple):
    """Those of one layer's keys and values."""

    key: Scale
    value: Scale


def recorded_scales(environment: Mapping[str, str] = os.environ) -> list[Scale]:
    """All scales of the file, in its order."""
    name = environment.get(VARIABLE, "")
    if not name:
        raise CacheScaleError(
            f"quant_policy=8 needs scales for keys and values, and {VARIABLE} is not set. "
            f"Set it to the absolute path of a record file: docs/lmdeploy.md says what is in it. {_INSTEAD}."
        )
    path = Path(name)
    if not path.is_absolute():
        raise CacheScaleError(f"{VARIABLE}={name!r} is relative, expected an absolute path. {_INSTEAD}.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CacheScaleError(
            f"{VARIABLE}={name!r} cannot be read: {error}. Set it to a record file. {_INSTEAD}."
        ) from error
    found = [_scale(name, *pair) for pair in _PAIR.findall(text)]
    if not found:
        raise CacheScaleError(
            f"{name} has no 'scale: NUMBER offset: NUMBER', expected one for each layer. {_INSTEAD}."
        )
    return found


def _scale(name: str, scale: str, offset: str) -> Scale:
    try:
        step, zero = float(scale), float(offset)
    except ValueError:
        step = zero = math.nan
    if not (0 < step < math.inf and -128 <= zero <= 127 and zero.is_integer()):
        raise CacheScaleError(
            f"{name} has 'scale: {scale} offset: {offset}', expected a scale above 0 and a whole offset from -128 to 127."
        )
    return Scale(step, int(zero))


def layer_scales(scales: list[Scale], layers: int) -> list[LayerScales]:
    """The scales of each layer: one for keys and values, or one for keys and then one for values."""
    if len(scales) == layers:
        return [LayerScales(scale, scale) for scale in scales]
    if len(scales) == 2 * layers:
        return [LayerScales(*pair) for pair in zip(scales[::2], scales[1::2], strict=True)]
    raise CacheScaleError(
        f"{os.environ.get(VARIABLE, VARIABLE)} has {len(scales)} scales, and the model has {layers} layers of attention. "
        f"Expected {layers} scales, or {2 * layers} with those of keys and values in turn. {_INSTEAD}."
    )
