"""Compute on an NVIDIA GPU in your own program."""

from dimred.launch.devices import DEVICES


def use_gpu(*, tf32: bool = False) -> None:
    """Load MindSpore's backend for NVIDIA's GPUs, and compute on the first GPU that CUDA_VISIBLE_DEVICES shows.

    Call it before the first import of mindspore, and before ``from dimred import`` of a name that needs it. On a GPU
    newer than MindSpore's kernels (compute capability 9.0 and above), the driver compiles them when the first
    operation runs; this takes about a quarter of an hour, once.

    Args:
        tf32: whether float32 convolutions and matrix products may be computed in TF32, with a 10-bit mantissa.
            MindSpore's own default allows it for convolutions. Leave it off for a search, because a search compares
            losses.

    Raises:
        MissingPackageError: MindSpore is not installed.
        ConfigError: MindSpore is imported already, or driver, GPU, CUDA's libraries or MindSpore's backend are missing.
    """
    DEVICES["GPU"].make_ready("dimred.use_gpu() is called", "leave the call out")
    from dimred.runs.device import use_device  # imports MindSpore, which reads what was made ready

    use_device("GPU", allow_short_type=tf32)
