"""DIOPI: the standard operator interface.

One table (`diopi.table`) declares every operator once; from it come the C headers, the PyTorch registrations and the
documents (`python -m diopi.generate`). `diopi.vendors` finds the libraries that implement it.
"""

__version__ = "0.1.0"
