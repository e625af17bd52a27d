"""Loads any DIOPI library and calls it, without PyTorch.

    library = Library.open("libdiopi_impl.so")
    memory = library.memory
    x = Tensor(memory.allocate(16), [4], [1], "float32")
    answer = library.call("diopiExpInp", {"input": x})

The functions a library calls back (diopirt.h) are served by libdiopi_direct; device memory comes from the vendor's table
(include/dipu/vendor.h) if the library has one, else it is host memory.
"""

from diopi.library.errors import LibraryError
from diopi.library.handles import Generator, Made, Scalar, Tensor
from diopi.library.loader import Answer, Library
from diopi.library.memory import LibraryMemory

__all__ = ["Answer", "Generator", "Library", "LibraryError", "LibraryMemory", "Made", "Scalar", "Tensor"]
