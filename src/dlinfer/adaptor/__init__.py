"""Declared differences between the interface and a vendor's kernel, absorbed by one engine."""

from __future__ import annotations

from dlinfer.adaptor.engine import adapted
from dlinfer.adaptor.rules import Cast, Constant, Contiguous, Drop, Fold, Layout, Rename, Rule

__all__ = ["Cast", "Constant", "Contiguous", "Drop", "Fold", "Layout", "Rename", "Rule", "adapted"]
