"""Fused operators for serving large language models, and what lies around them.

- `dlinfer.ops`: the operators as functions, with the call forms of the serving frameworks.
- `dlinfer.interface`: what each operator is: schema, shapes, checks; defined once as `torch.ops.dlinfer.<name>`.
- `dlinfer.reference`: plain PyTorch for every operator, on any device.
- `dlinfer.vendors`: kernels for chips, chosen at run time; `dlinfer.adaptor`: declared differences of such kernels.
- `dlinfer.conformance`: whether a vendor's kernels are right.

Importing the package loads nothing; `import dlinfer.ops` loads torch and defines the operators.
"""

__version__ = "0.1.0"
