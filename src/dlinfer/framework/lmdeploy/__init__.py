"""The adaptor for LMDeploy's PyTorch engine. `setup.set_up` changes the process; importing a module changes nothing.

LMDeploy imports `dlinfer.framework.lmdeploy_ext`, which calls it.
"""
