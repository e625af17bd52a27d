"""The commands of the program `diopi`, one file each. Only diopi.cli imports them."""
