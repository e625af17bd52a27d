"""Subcommands of `op-tools`, one file each."""
