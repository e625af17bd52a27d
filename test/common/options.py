"""The options `--backend` and `--dynamic` of pytest, and what they were for the modules that are collected."""

from __future__ import annotations

import argparse
import os

import pytest

MODES = {"false": [False], "true": [True], "all": [False, True]}
_given = argparse.Namespace()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dicp")
    group.addoption("--backend", default="hostgraph", help="as in torch.compile(backend=...)")
    group.addoption("--dynamic", default="false", help="compiled for any size: true, false, all")


def pytest_configure(config: pytest.Config) -> None:
    from dicp.errors import DicpError
    from dicp.registry import find

    backend, dynamic = config.getoption("--backend"), config.getoption("--dynamic")
    if dynamic not in MODES:
        raise pytest.UsageError("DYNAMIC should in (true, false, all)")
    try:
        find(backend)
    except DicpError as error:
        raise pytest.UsageError(str(error)) from None
    # What is emitted for a vendor's compiler is interpreted, unless its SDK is wanted.
    os.environ.setdefault("DICP_EMITTED_RUN", "interpreter")
    _given.backend, _given.dynamic = backend, dynamic


def given() -> argparse.Namespace:
    """`backend` and `dynamic`, from pytest's command line."""
    return _given
