"""Bisect: the smallest list of operators that, run on the CPU, restores the result of a script.

The script runs unchanged in processes of its own (`driver`, started by `running`), each time with other operators on
the CPU. `readings` says what the result of a run is and whether it is restored, `search` which operators to try next, and
`bisection` puts them together: by the loss, or by the verdicts on each operator where the loss does not tell.
"""
