"""`python -m torch_dipu.commands`: the same as the program `dipu`."""

from torch_dipu.commands import app

app(prog_name="dipu")
