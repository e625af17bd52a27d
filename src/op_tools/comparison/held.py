"""Inputs of a call kept until its backward, without copying them and without keeping its graph alive."""

from __future__ import annotations

from typing import Any

import torch


class Held:
    """Inputs of a call without their graph, and whether somebody has written to them since."""

    def __init__(self) -> None:
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._detached: dict[int, torch.Tensor] = {}

    def tree(self, value: Any) -> Any:
        """The same tree with detached tensors; nothing is copied."""
        if isinstance(value, torch.Tensor):
            detached = self._detached.get(id(value))
            if detached is None:
                detached = self._detached[id(value)] = value.detach()
                if not value.is_inference():
                    self._versions.append((detached, detached._version))
            return detached
        if type(value) is tuple or type(value) is list:
            return type(value)([self.tree(item) for item in value])
        if type(value) is dict:
            return {key: self.tree(item) for key, item in value.items()}
        return value

    def changed(self) -> bool:
        """Whether an input was written to since."""
        return any(tensor._version != version for tensor, version in self._versions)
