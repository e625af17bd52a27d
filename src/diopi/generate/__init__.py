"""Everything that is made from the operator table: C headers, PyTorch registrations, the support matrix.

`python -m diopi.generate` writes the files, `--check` compares them with what is committed.
"""
