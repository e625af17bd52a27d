"""The one place where the names of cuda are mapped onto another device.

No mode is pushed on torch's stack: operators cost what they cost without the mapping, and only the
functions that name a device are wrapped. The device is a parameter; nothing here knows which one it is.
"""

from __future__ import annotations

from _ditorch.mapping import (
    backends,
    classes,
    collectives,
    comm,
    cuda_module,
    device_names,
    factories,
    legacy_types,
    loading,
    memory,
    overrides,
    parallel,
    precision,
    profiling,
    scripting,
    tensors,
)
from _ditorch.mapping.compiler import CompilerBridge
from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target
from _ditorch.mapping.unmapped import NotMapped

__all__ = ["Mapping", "NotMapped", "Target"]


_PARTS = (
    classes,
    factories,
    tensors,
    legacy_types,
    cuda_module,
    memory,
    backends,
    profiling,
    precision,
    loading,
    parallel,
    collectives,
    comm,
    scripting,
    device_names,
)


class Mapping:
    """All changes that make programs written for cuda run on `target`; off until `enable`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.patches = Patches()
        self._compiler: CompilerBridge | None = None

    @property
    def enabled(self) -> bool:
        return self.patches.installed

    def enable(self) -> None:
        """Apply the mapping; a second call changes nothing."""
        if self.enabled:
            return
        if self._compiler is None:
            self._compiler = self._prepare()
        self._compiler.before_install()
        self.patches.install()

    def disable(self) -> None:
        """Leave torch exactly as it was before `enable`; a second call changes nothing."""
        self.patches.remove()

    def _prepare(self) -> CompilerBridge:
        # Everything here reads torch and only notes the changes, so each part still sees torch's own
        # functions.
        for part in _PARTS:
            part.apply(self.patches, self.target)
        overrides.apply(self.patches)
        return CompilerBridge(self.patches, self.target)
