"""The environment variables of dicp. Imports nothing of this package: see `dicore.settings`."""

from __future__ import annotations

from dicore.settings import Variable, flag, one_of, size

CACHE_DIR = Variable(
    "DICP_CACHE_DIR",
    "",
    "the folder for compiled code",
    unset="`dicp` in the user's cache",
)
CACHE_SIZE = Variable(
    "DICP_CACHE_SIZE",
    1 << 30,
    "how large that folder may grow before what was used longest ago is removed",
    size,
)
CXX = Variable(
    "DICP_CXX",
    "g++",
    "the C++ compiler of the backend `hostgraph`",
    dynamic=True,
)
DUMP_DIR = Variable(
    "DICP_DUMP_DIR",
    "",
    "a folder that keeps everything about each compiled graph: graph, partitions, code, the compiler's command and log",
    dynamic=True,
    unset="nothing is kept",
)
EMITTED_RUN = Variable(
    "DICP_EMITTED_RUN",
    "vendor",
    "what runs graphs that are emitted for a vendor's compiler: `vendor` its SDK, or eager PyTorch where that is not installed;"
    " `interpreter` an interpreter of what was emitted, on the CPU; `eager` PyTorch",
    one_of("vendor", "interpreter", "eager"),
    dynamic=True,
)
FALLBACK = Variable(
    "DICP_FALLBACK",
    "always",
    "what may run eagerly: `always` all that cannot be compiled; `unsupported` operators that the backend does not have, while"
    " a failing compiler is an error; `never`",
    one_of("always", "unsupported", "never"),
    dynamic=True,
)
FREEZING = Variable(
    "DICP_FREEZING",
    False,
    "`1`: without gradients, weights are constants that may be packed; as `torch.compile(options={'freezing': True})`",
    flag,
    dynamic=True,
)
SANITIZE = Variable(
    "DICP_SANITIZE",
    False,
    "`1`: code of the backend `hostgraph` checks its addresses and its arithmetic while it runs (the process needs libasan)",
    flag,
    dynamic=True,
)
VERIFY = Variable(
    "DICP_VERIFY",
    "rules",
    "what is checked after each pass: `rules` of the graph, `types` too by inferring them again, or `off`",
    one_of("rules", "types", "off"),
    dynamic=True,
)
