"""Functions that make tensors on a device given by keyword: `torch.zeros(3, device='cuda')`."""

from __future__ import annotations

from types import ModuleType

import torch
import torch.jit._builtins
import torch.utils._device

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target, translate_keyword

__all__ = ["FACTORIES", "apply"]

# A test compares this list with the schemas of the installed torch: whatever takes a device must be here.
FACTORIES: dict[str, str] = {
    "torch": """
        _efficientzerotensor _empty_affine_quantized _empty_per_channel_affine_quantized
        _nested_tensor_from_tensor_list _pin_memory arange as_tensor asarray bartlett_window blackman_window
        empty empty_like empty_permuted empty_quantized empty_strided eye from_dlpack from_file full
        full_like hamming_window hann_window kaiser_window linspace logspace normal ones ones_like rand
        rand_like randint randint_like randn randn_like randperm range scalar_tensor sparse_bsc_tensor
        sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
        tensor tril_indices triu_indices zeros zeros_like
    """,
    "torch.fft": "fftfreq rfftfreq",
    "torch.nested": "as_nested_tensor nested_tensor",
}


def apply(patches: Patches, target: Target) -> None:
    # The set of factories that `with torch.device(...)` applies to is built at first use from the names in
    # torch. It must hold the originals, because those are what a function mode sees.
    torch.utils._device._device_constructors()
    for module, names in ((torch, "torch"), (torch.fft, "torch.fft"), (torch.nested, "torch.nested")):
        for name in FACTORIES[names].split():
            if hasattr(module, name):
                _wrap(patches, target, module, name)


def _wrap(patches: Patches, target: Target, module: ModuleType, name: str) -> None:
    original = getattr(module, name)
    wrapper = translate_keyword(original, target)
    patches.wrap(module, wrapper, name)
    operator = torch.jit._builtins._find_builtin(original)
    if operator is not None:
        # TorchScript recognises builtins by identity; without this, scripting `torch.zeros` would try to
        # compile the wrapper.
        patches.set_item(torch.jit._builtins._get_builtin_table(), id(wrapper), operator)
