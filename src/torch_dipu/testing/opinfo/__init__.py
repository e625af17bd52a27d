"""Sweep PyTorch's own OpInfo database on a device, with the CPU as the reference.

``python -m torch_dipu.testing.opinfo --device dipu`` runs three sweeps. What is counted, with torch 2.13:

* **forward**: one pair for every entry of ``op_db`` and every dtype that the entry declares for the CPU
  (``OpInfo.dtypes``): 702 entries, 6,121 pairs. Three entries (the two fused attention kernels of CUDA and
  ``batch_norm`` without cuDNN) declare no CPU dtype and therefore have no pair: 699 operators remain.
* **gradient**: one pair for every entry with ``supports_autograd`` and at least one CPU backward dtype:
  547 entries less 4 without one (the same three and ``one_hot``) = 543 pairs, in float32; ``imag``,
  ``istft`` and ``view_as_real`` have complex gradients only and are run in complex64.
* **refuse**: one pair for every entry that lists inputs which must be refused (``error_inputs``): where the
  CPU raises, the device must raise.

Other versions of torch have another database, hence other counts; the rules are the same.

Every pair ends in exactly one state (`State`). Nothing is skipped silently: a pair that compared nothing
is an error, and whatever does not pass is listed by name, either as unexpected or with the kind and the
reason found for it in ``expected.toml``.
"""

from torch_dipu.testing.opinfo.model import Outcome, Pair, Problem, State, Sweep

__all__ = ["Outcome", "Pair", "Problem", "State", "Sweep"]
