"""The process pool of all packages: workers may crash, hang or refuse to start, and none takes the run with it.

    def start(group, setup):                    # "package.module:start", runs in the worker
        library = open_library(setup)
        return Service(run=lambda task: check(library, task), facts=library.version)

    with WorkerPool("package.module:start", setup, workers=2, timeout=60) as pool:
        pool.add("", tasks)
        for event in pool.run():                # Ready, Progress, Done, Lost
            ...

A worker belongs to a group, prepares itself for it and answers tasks of that group one by one. Every task ends in exactly one
`Done` or `Lost`; what that means (a failed case, another try, a row of a report) is the caller's to say. `add` may be
called while `run` goes on, so a caller continues behind a task that killed its worker by adding what is left.
"""

from dicore.workers.pool import Done, Lost, Progress, Ready, WorkerPool, describe_exit, tail
from dicore.workers.process import Retire, Service, die_with_parent, one_line

__all__ = [
    "Done",
    "Lost",
    "Progress",
    "Ready",
    "Retire",
    "Service",
    "WorkerPool",
    "describe_exit",
    "die_with_parent",
    "one_line",
    "tail",
]
