"""Compares two runs of one program: finds the first call that is wrong, and in which run."""
