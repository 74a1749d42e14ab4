"""Tell PyTorch's pickles of weights from a trainer's other pickles by their names, and refuse them unread."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from dimred.checkpoints.checkpoint_io import check_is_no_pointer, open_checkpoint
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import CheckpointError

_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".pth.tar")
# Words in the names of what trainers keep beside the weights, in any format.
_STATE = re.compile(
    r"(?:^|[\W_])(?:optim(?:izers?)?|(?:lr_?)?schedulers?|(?:grad_?)?scaler|rng|random_states?|training_args|sampler"
    r"|(?:trainer|recipe)_state|dl_state_dict|custom_checkpoint)(?=[\W_\d]|$)",
    re.IGNORECASE,
)
_MEGATRON = "model_optim_rng"  # has the weights, too
_MOST_NAMES = 3  # in a message
_MAGIC = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
_SHARD = ".distcp"


def is_state(path: Path) -> bool:
    """Return whether a file's name says that it holds a trainer's state, such as an optimizer's, and no weights."""
    return _STATE.search(path.name) is not None and not path.name.startswith(_MEGATRON)


def is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle, by its ending or, as MindSpore writes ``.ckpt`` too, by how it begins.

    Raises:
        CheckpointError: the file can't be read.
    """
    if path.suffix != ".ckpt":
        return path.name.endswith(_PICKLES)
    with open_checkpoint(path) as file, reading(path):
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))


def is_of_torch(path: Path) -> bool:
    """Return whether a file begins as PyTorch writes them: an archive, or a pickle of its magic number; or a pointer.

    Raises:
        CheckpointError: the file can't be read.
    """
    with open_checkpoint(path) as file, reading(path):
        head = file.read(32)
    return head.startswith((b"PK\x03\x04", b"version https://")) or _MAGIC in head


def pickles_of_weights(paths: Iterable[Path]) -> list[Path]:
    """List the files that are pickles of weights, sorted; CheckpointError if one can't be read."""
    return sorted(path for path in paths if path.is_file() and not is_state(path) and is_pickle(path))


def converted_path(path: Path) -> Path:
    """Return the path that a pickle's weights have after ``dimred convert``: where frameworks look for them."""
    ending = next(ending for ending in (".pth.tar", path.suffix) if path.name.endswith(ending))
    stem = path.name.removesuffix(ending)
    new_stem = re.sub(r"^pytorch_model(?=[.-]|$)", "model", stem)
    return path.with_name(f"{new_stem}.safetensors")


def unconverted(pickles: Iterable[Path]) -> list[Path]:
    """List the pickles whose weights are not beside them as ``.safetensors``."""
    return [path for path in pickles if not converted_path(path).exists()]


def refusal(pickles: Sequence[Path], argument: Path) -> CheckpointError:
    """Return the error about pickles of weights.

    Args:
        pickles: the pickles.
        argument: what to convert: a file, or the folder of all.

    Raises:
        CheckpointError: one can't be read, or is a pointer of Git LFS, which must be fetched before it is converted.
    """
    for path in pickles:
        with open_checkpoint(path) as file, reading(path):
            check_is_no_pointer(file, path)
    names = ", ".join(map(str, pickles[:_MOST_NAMES]))
    more = f" and {len(pickles) - _MOST_NAMES} more" if len(pickles) > _MOST_NAMES else ""
    are = "is a pickle" if len(pickles) == 1 else "are pickles"
    command = shlex.join(["dimred", "convert", str(argument)])
    return CheckpointError(
        f"{names}{more} {are}, which could run any code; where PyTorch is installed, call: {command}"
    )


def check_is_not_distributed(path: Path) -> None:
    """Check that a file or folder is no distributed checkpoint of PyTorch; a CheckpointError says how to join one."""
    shard = next(path.rglob(f"*{_SHARD}"), None) if path.is_dir() else path if path.suffix == _SHARD else None
    if shard is not None:
        words = ["python", "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
        command = shlex.join([*words, str(shard.parent), f"{shard.parent}.pt"])
        raise CheckpointError(
            f"{shard.parent} is a distributed checkpoint of PyTorch; first make one file of it: {command}"
        )
