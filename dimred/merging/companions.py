"""Copy what a network needs beside its weights: configuration, tokenizer, code, in sub-folders too.

What a file is for is derived from the run: a file that stays equal while the weights change belongs to the network,
whatever its name; one that changes with them is a weight, an optimizer's state or a log. Configuration and code are
copied in any case, since they may hold the version of the program that wrote them.
"""

import filecmp
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dimred.checkpoints.checkpoint_io import SUFFIXES, Checkpoint, read_index
from dimred.checkpoints.folder import INDEX
from dimred.checkpoints.pickles import is_state
from dimred.checkpoints.stored_tensor import reading
from dimred.io.atomic import is_temporary
from dimred.io.run_names import MANIFEST, MERGE_FOLDER, has_record
from dimred.merging.record import CARD, INPUT_CARD

_log = logging.getLogger(__name__)

_COPY_BYTES = 1 << 20
_CONFIGURATION = (".json", ".yaml", ".yml", ".toml", ".py", ".jinja", ".md")
# Endings of weights in formats that dimred does not average.
_OTHER_WEIGHTS = (
    ".bin", ".pt", ".pth", ".pkl", ".pickle", ".tar", ".h5", ".hdf5", ".keras", ".msgpack", ".npy", ".npz", ".onnx",
    ".onnx_data", ".gguf", ".ot", ".tflite", ".pb", ".distcp", *SUFFIXES,
)  # fmt: skip
_LOG = re.compile(r"\.log$|tfevents|^trainer_state\.json$", re.IGNORECASE)
_RECORD = re.compile(r"\.jsonl$|(?:^|[_-])(?:results|metrics|history)\.json$", re.IGNORECASE)  # a log, if it changes
# The index of shards in another format, such as those that were converted.
_OTHER_INDEX = re.compile(r"\.(?!safetensors)\w+\.index\.json$", re.IGNORECASE)
_FOLDERS_OF_LOGS = ("runs", "logs", "wandb", "lightning_logs", "tensorboard", "mlruns")
_DTYPE = re.compile(rb'("(?:torch_)?dtype"\s*:\s*"(?:torch\.)?)(?:float64|float32|float16|bfloat16)(?=")')


def root_of(checkpoint: Checkpoint) -> Path:
    """Return the folder that a checkpoint's files are in, or in sub-folders of."""
    return checkpoint.path if checkpoint.path.is_dir() else checkpoint.files[0].parent


def copy_companions(template: Checkpoint, other: Checkpoint, folder: Path) -> None:
    """Copy all files beside the template's weights that belong to the network; its model card gets another name.

    Args:
        template: the checkpoint to copy from.
        other: a checkpoint of the same network, to see which files change in training.
        folder: the folder to copy to.

    Raises:
        CheckpointError: a file can't be read.
        OSError: a file can't be written.
    """
    root, weights = root_of(template), {*template.files}
    for path in _files_below(root, {file.parent for file in weights}):
        inside = path.relative_to(root)
        if path in weights:
            continue
        if not _belongs_to_the_network(path, root_of(other) / inside):
            if path.suffix in _OTHER_WEIGHTS and not is_state(path):
                _log.info(f"{path} is neither averaged nor copied: it seems to hold weights of its own")
            continue
        target = folder / (INPUT_CARD if str(inside) == CARD else inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        with reading(path):
            source = path.open("rb")
        with source, target.open("wb") as file:
            copy_file(source, path, file)


def _files_below(folder: Path, with_weights: set[Path]) -> Iterator[Path]:
    """Yield the files in a folder and its sub-folders, but not in logs and not in folders of other networks."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or is_temporary(path.name) or path.suffix == MERGE_FOLDER or has_record(path):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and path.name not in _FOLDERS_OF_LOGS and path.resolve() not in folder.resolve().parents:
            is_part = any(part.is_relative_to(path) for part in with_weights)
            if is_part or not any(file.suffix in SUFFIXES for file in path.rglob("*")):
                yield from _files_below(path, with_weights)
            else:
                _log.info(f"{path} is neither averaged nor copied: it has weights of its own")


def _belongs_to_the_network(path: Path, twin: Path) -> bool:
    """Return whether to copy a file; ``twin`` is where it would be in another checkpoint."""
    if _LOG.search(path.name) or _OTHER_INDEX.search(path.name) or path.name == MANIFEST:
        return False
    is_record = _RECORD.search(path.name) is not None
    if not is_record and path.suffix in _CONFIGURATION:
        return True
    if not is_record and is_state(path):
        return False  # without reading it, as it may be larger than the weights
    with reading(path):
        is_equal = twin.is_file() and filecmp.cmp(path, twin, shallow=False)
    if is_record:
        return is_equal and path != twin
    return is_equal or not (twin.is_file() or path.suffix in _OTHER_WEIGHTS)


def renew_indices(template: Checkpoint, folder: Path) -> None:
    """Correct ``total_size`` in the copied indices of shards, if the new shards have another number of bytes.

    Args:
        template: the checkpoint whose indices were copied.
        folder: the folder that they were copied to, with the new shards.
    """
    root = root_of(template)
    for index in folder.rglob(f"*{INDEX}"):
        content = json.loads(index.read_bytes())
        shards = [folder / file.relative_to(root) for file in template.files]
        tensors = [tensor for shard in shards if shard.parent == index.parent for tensor in read_index(shard).values()]
        total = sum(tensor.n_bytes for tensor in tensors)
        metadata = content.get("metadata")
        if isinstance(metadata, dict) and metadata.get("total_size", total) != total:  # --dtype has changed it
            metadata["total_size"] = total
            index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def renew_dtype(folder: Path, dtype: str) -> None:
    """Write the type of the weights into the copied configurations, where frameworks look for it when they load.

    Args:
        folder: the folder that they were copied to.
        dtype: the type, such as ``bfloat16``.
    """
    for path in folder.rglob("*config*.json"):
        content = path.read_bytes()
        new_content = _DTYPE.sub(rb"\g<1>" + dtype.encode(), content)
        if new_content != content:
            path.write_bytes(new_content)


def copy_file(source: BinaryIO, path: Path, target: BinaryIO) -> None:
    """Copy the rest of an open file into another one.

    Args:
        source: the file to read, at the place to begin.
        path: its path, for errors.
        target: the file to write.

    Raises:
        CheckpointError: ``source`` can't be read.
        OSError: ``target`` can't be written.
    """
    while True:
        with reading(path):
            piece = source.read(_COPY_BYTES)
        if not piece:
            return
        target.write(piece)
