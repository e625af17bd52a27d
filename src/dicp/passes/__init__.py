"""Rewrites of a typed graph that several backends use."""
