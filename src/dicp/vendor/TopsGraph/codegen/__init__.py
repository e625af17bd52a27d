"""Emitted programs: their C++, what they build when they run, and what that computes."""
