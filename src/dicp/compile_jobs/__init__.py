"""Running a chip's compiler once for each program, and keeping what it made."""
