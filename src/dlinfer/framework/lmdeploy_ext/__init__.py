"""LMDeploy's PyTorch engine on dlinfer. LMDeploy imports this package when `device_type` is not cuda.

The import is the whole set-up: tensors go where DLINFER_DEVICE says, and the names of devices that LMDeploy uses exist
afterwards. It runs before LMDeploy makes the first tensor. See docs/lmdeploy.md.
"""

from __future__ import annotations

from dlinfer.framework.lmdeploy_ext.starting import start

start()
