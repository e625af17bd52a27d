"""Stand-in for the vendor's own mapping: importing it is all that it takes, and it cannot be taken back."""

import torch

torch.cuda.is_available = torch.npu.is_available
