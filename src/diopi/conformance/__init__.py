"""The conformance suite: is a vendor's DIOPI library right, operator by operator, without a second machine.

A case is one call of one C function. Its reference is a Python expression of the operator table, computed on the CPU in
float64 and in the call's own dtype; `op_tools.verdict` judges. Cases come from four sources: PyTorch's operator database,
the suite's own samples, calls captured from models, and files that users write.
"""
