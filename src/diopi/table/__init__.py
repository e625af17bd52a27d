"""The operator table: the published C interface and, for each operator that is served, what it means to PyTorch.

`interface.tsv` holds the C signatures (one line a function, fixed facts). The `*.toml` files hold one entry per served
operator, grouped by what kind of operator it is. `load()` joins both and checks them; a wrong entry is an error that
names the file, the entry and the fault.
"""

from diopi.table.reader import load
from diopi.table.schema import Argument, Entry, Function, OperatorTable, TableError

__all__ = ["Argument", "Entry", "Function", "OperatorTable", "TableError", "load"]
