"""The environment variables of this backend alone. Imports nothing of this package: see `dicore.settings`."""

from __future__ import annotations

from dicore.settings import Variable, flag

PRECISION_CHECK = Variable(
    "DICP_ASCEND_PRECISION_CHECK",
    False,
    "`1`: each call of a graph of `ascendgraph` is run eagerly too, and what differs is logged",
    flag,
    dynamic=True,
)
