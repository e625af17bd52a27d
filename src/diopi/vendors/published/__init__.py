"""DIOPI's own operator library (`impl/torch` of the published DIOPI), compiled as it is and usable as a vendor.

    build(Path("DIOPI"), Path("libpub.so"))       # DIPU_DEVICE=./libpub.so

The sources stay where they are and are not changed. They are compiled against the headers of this project and the installed
torch, with a few headers in front of theirs (`shim/`) and a runtime beside them (`runtime/`).
"""

from diopi.vendors.published.compilation import BuiltLibrary, build
from diopi.vendors.published.sources import DEVICES, PublishedError

__all__ = ["DEVICES", "BuiltLibrary", "PublishedError", "build"]
