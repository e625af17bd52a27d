"""Bisect: the smallest list of operators that, run on the CPU, restores the result of a script.

The script runs unchanged in processes of its own (`driver`, started by `running`), each time with other operators on
the CPU. `search` decides which, `readings` says what the result of a run is and whether it is restored, `ranking` knows
which operators were judged wrong, and `hunt` puts them together.
"""
