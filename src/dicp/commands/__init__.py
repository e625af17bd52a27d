"""The commands of the program `dicp`."""
