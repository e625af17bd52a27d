"""``python -m torch_dipu.testing.opinfo``"""

from torch_dipu.testing.opinfo.cli import app

if __name__ == "__main__":
    app(prog_name="python -m torch_dipu.testing.opinfo")
