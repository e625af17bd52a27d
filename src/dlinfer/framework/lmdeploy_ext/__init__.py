"""The names that LMDeploy imports. Importing this package sets the process up, and nothing else in dlinfer does so.

LMDeploy imports it, and calls nothing, when `device_type` is not cuda: the import is the only moment there is before it makes
its first tensor. Tensors then go where DLINFER_DEVICE says, and the names of devices that LMDeploy uses exist
(`dlinfer.framework.lmdeploy`, docs/lmdeploy.md).
"""

from __future__ import annotations

from dlinfer.framework.lmdeploy.setup import set_up

set_up()
