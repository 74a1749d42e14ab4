"""The fusion of all-reduces in groups can only be set by a context that changes more than that.

``set_auto_parallel_context`` is deprecated for static graphs from MindSpore 2.11 on, and its parallel mode would let
MindSpore put all-reduces of its own into optimizers. The steps of dimred have theirs, and need only the fusion. So this
context is set only if ``all_reduce_split`` is given, and only on Ascend. It has not been run on a device yet. The
context's successor, ``AutoParallel``, has no mode for ranks that share a batch; ``tests/workarounds`` fails once it has
one.
"""

from collections.abc import Sequence

import mindspore as ms


def fuse_all_reduces(splits: Sequence[int], group_size: int) -> None:
    """Have the all-reduces of a graph fused in groups.

    Args:
        splits: the numbers, from 0, of the gradients that end a fused all-reduce.
        group_size: number of ranks.
    """
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.DATA_PARALLEL,
        gradients_mean=True,
        device_num=group_size,
        all_reduce_fusion_config=list(splits),
    )
