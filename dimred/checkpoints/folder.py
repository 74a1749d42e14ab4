"""Find the checkpoints in a folder, and open one: a file, a folder with one file of weights, or shards."""

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dimred.checkpoints.checkpoint_io import SUFFIXES, Checkpoint, open_checkpoint, open_file, read_index
from dimred.checkpoints.stored_tensor import StoredTensor, reading
from dimred.errors import CheckpointError, ConfigError, shown
from dimred.io.run_names import MERGE_FOLDER, has_record, snapshots_below

INDEX = ".safetensors.index.json"
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle")
_STATES = ("optimizer", "scheduler", "rng_state", "training_args")  # a trainer's pickles beside those of the weights
_CONVERT = (
    "import torch; from safetensors.torch import save_file; save_file({{n: t.contiguous().clone() for n, t in "
    'torch.load({0}, weights_only=True).items()}}, {1}, {{"format": "pt"}})'
)


def checkpoints_in(folder: Path, argument: str) -> list[Path]:
    """List the checkpoints in a folder: numbered folders or, if there are none, files; omit results of merges.

    Raises:
        ConfigError: there are none; the message names ``argument``.
        CheckpointError: there are only pickles.
    """
    if where := snapshots_below(folder):
        raise ConfigError(f"{argument} is {str(folder)!r}, the folder of a run{where}")
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    entries = sorted(path for path in visible if path.suffix != MERGE_FOLDER and not has_record(path))
    folders = [path for path in entries if path.is_dir() and re.search(r"\d", path.name) and _weight_files(path)]
    files = [path for path in entries if path.suffix in SUFFIXES]
    converted = {path.with_suffix(".ckpt") for path in files if path.suffix == ".safetensors"}
    files = [path for path in files if path not in converted or not _begins_like_a_pickle(path)]
    if folders or files:
        return folders or files
    if pickles := _pickles(folder.rglob("*")):
        raise _pickle(pickles[0])
    raise ConfigError(f"{argument} is {str(folder)!r}, a folder without a .safetensors or .ckpt file; name another")


def _pickles(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix in _PICKLES and not path.name.startswith(_STATES))


def _weight_files(folder: Path) -> list[Path]:
    return index_files(folder) or sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def index_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{INDEX}"))


def read_one(path: Path) -> Checkpoint:
    """Open a checkpoint: a file, a folder with one file of weights, or shards. Its step is left at 0.

    Raises:
        CheckpointError: a file is damaged or a pickle, or ``path`` is not a single checkpoint.
    """
    main = path
    if path.is_dir():
        candidates = _weight_files(path) or _pickles(path.iterdir())
        if len(candidates) != 1:
            each = f"; to average its files, give {path / ('*' + candidates[0].suffix)}" if candidates else ""
            raise CheckpointError(
                f"{path} has {len(candidates)} files of weights; a folder that is one checkpoint has one, or shards "
                f"and their model{INDEX}{each}"
            )
        main = candidates[0]
    if main.name.endswith(INDEX):
        return _sharded(main)
    if main.suffix in _PICKLES or (main.suffix == ".ckpt" and _begins_like_a_pickle(main)):
        raise _pickle(main)
    if re.search(r"-\d+-of-\d+$", main.stem):
        raise CheckpointError(f"{main} is one of several shards; give the folder with their model{INDEX}")
    return replace(open_file(main), path=path)


def _sharded(index: Path) -> Checkpoint:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = list(dict.fromkeys(weight_map.values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("weight_map names no file beside it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards ({type(error).__name__}: {error})") from None
    files = tuple(index.parent / name for name in sorted(names))
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{index} names {file.name}, which is not there; fetch it, or save the model again")
        found = read_index(file, verify=True).items()
        tensors |= {name: tensor for name, tensor in found if weight_map.get(name, file.name) == file.name}
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None:
        raise CheckpointError(f"{index} says {shown(missing)} is in {weight_map[missing]}, which does not have it")
    return Checkpoint(index.parent, files, tensors)


def _begins_like_a_pickle(path: Path) -> bool:
    with open_checkpoint(path) as file, reading(path):
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))


def _pickle(path: Path) -> CheckpointError:
    names = (json.dumps(str(name), ensure_ascii=False) for name in (path, path.with_suffix(".safetensors")))
    convert = shlex.quote(_CONVERT.format(*names))
    return CheckpointError(f"{path} is a pickle, which could run any code; convert it: python -c {convert}")
