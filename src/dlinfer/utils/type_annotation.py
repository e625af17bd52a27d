"""What a serving framework tells about the ranks that hold experts. The module's name is fixed by LMDeploy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

__all__ = ["MoECommType", "MoeMetadata"]


class MoECommType(Enum):
    """How tokens travel between ranks that hold different experts."""

    UNDEFINED = "undefined"
    ALLGATHER = "allgather"
    ALLTOALL = "alltoall"
    MC2 = "mc2"


@dataclass
class MoeMetadata:
    """One step's ranks and groups; every field has the value of a single process."""

    max_tokens_across_dp: int = 0
    pad_size: int = 0
    dp_size: int = 1
    tp_size: int = 1
    ep_size: int = 1
    tp_rank: int = 0
    ep_rank: int = 0
    tp_group: Any = None
    ep_group: Any = None
    moe_comm_type: MoECommType = MoECommType.UNDEFINED
    x_active_mask: Tensor | None = None
    moe_group_name: str | None = None
    expert_ids_per_ep_rank: Tensor | None = None
    router_n_groups: int = -1
