"""`python -m ditorch`: the same as the program `ditorch`."""

from ditorch.cli import app

app()
