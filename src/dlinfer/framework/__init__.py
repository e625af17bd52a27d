"""Adaptors of serving frameworks, one package each. Nothing is loaded before its framework asks for it."""
