"""How well PyTorch's own tests pass on a device: ``ditorch torch-tests``.

Two kinds of tests. The **operator database** (OpInfo) that comes with torch is run on the device and on the CPU, and
the answers are compared. What is counted, with torch 2.13 and a device that is held to the CPU's dtypes:

* **forward**: one pair for every entry of ``op_db`` and every dtype that the entry declares (``OpInfo.dtypes``):
  702 entries, 6,121 pairs. Three entries (the two fused attention kernels of CUDA and ``batch_norm`` without cuDNN)
  declare no CPU dtype and therefore have no pair: 699 operators remain.
* **gradient**: one pair for every entry with ``supports_autograd`` and at least one CPU backward dtype: 547 entries
  less 4 without one (the same three and ``one_hot``) = 543 pairs, in float32; ``imag``, ``istft`` and
  ``view_as_real`` have complex gradients only and are run in complex64.
* **out**: every entry that takes ``out=`` and every dtype; the plain form on every sample, and on the first three
  also a result with gaps between its elements, one of size 0 and one of a dtype that cannot hold it.
* **inplace**: every entry with an in-place form and every dtype.
* **noncontiguous**: every entry in float32, int64 and complex64, as far as it has them: samples with gaps between
  their elements, forward and, where there is one, the gradient.
* **dtypes**: one pair for every entry: does the device take exactly the dtypes it should, forward and backward?
* **errors**: one pair for every entry that lists inputs which must be refused (``error_inputs``): where the CPU
  raises, the device must raise.

Other versions of torch have another database, hence other counts; the rules are the same. Given a **source tree** of
PyTorch, its test files are run case by case, each case in a process of its own where the device allows it.

Every case ends in exactly one state (`State`). Nothing is skipped silently: a pair that compared nothing is an error,
and whatever does not pass is listed by name, either as unexpected or with the kind and the reason found for it in the
device's file (``devices/``).
"""

from _ditorch.torch_tests.outcomes import OpInfoCheck, Pair, PairOutcome, Problem, State

__all__ = ["OpInfoCheck", "Pair", "PairOutcome", "Problem", "State"]
