"""Operators of ATen, each compiled alone: a file an operator."""
