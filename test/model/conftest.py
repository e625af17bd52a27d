"""Pytest looks for options here: the folder above is outside of where it looks."""

from ..common.options import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]
