"""Copy what a network needs besides its weights: configuration, tokenizer, code, in sub-folders too."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dimred.checkpoints.checkpoint_io import SUFFIXES, read_index
from dimred.checkpoints.stored_tensor import reading
from dimred.io.atomic import is_temporary
from dimred.io.regular_file import open_regular, read_regular
from dimred.merging.folder import INDEX, index_files
from dimred.merging.pickles import PICKLES
from dimred.merging.record import CARD, INPUT_CARD, MERGE_FOLDER, has_record
from dimred.merging.saved_network import SavedNetwork
from dimred.run_files.run_names import MANIFEST

_log = logging.getLogger(__name__)

CONFIG = "config.json"  # Hugging Face's libraries load the weights in the type that it names
# Finds the types to replace in that file, also in a nested configuration; all other bytes stay as they are.
_DTYPE = re.compile(rb'(?P<key>"(?:torch_)?dtype"\s*:\s*")(?:float64|float32|float16|bfloat16)(?=")')
_COPY_BYTES = 1 << 20
# Endings of weights and their indices, in any format, and of a trainer's state.
_OF_WEIGHTS = (
    *SUFFIXES,
    *PICKLES,
    ".h5",
    ".hdf5",
    ".keras",
    ".msgpack",
    ".npy",
    ".npz",
    ".onnx",
    ".onnx_data",
    ".gguf",
    ".ot",
    ".tflite",
    ".pb",
    ".distcp",
    ".bin.index.json",
    ".h5.index.json",
    INDEX,
    "trainer_state.json",
)


def copy_companions(template: SavedNetwork, folder: Path, dtype: str | None) -> None:
    """Copy the files beside the template's weights, but no weights, to a folder; the model card is renamed there.

    Args:
        template: the template.
        folder: the new folder.
        dtype: the new type of the weights, which ``config.json`` names from now on; None if they kept theirs.

    Raises:
        CheckpointError: a file can't be read.
        OSError: a file can't be written.
    """
    root = template.files[0].parent
    for path in _files_below(root):
        inside = path.relative_to(root)
        target = folder / (INPUT_CARD if str(inside) == CARD else inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        with reading(path):
            source = open_regular(path)
        with source, target.open("wb") as file:
            copy_file(source, path, file)
    config = folder / CONFIG
    if dtype is not None and config.is_file():
        before = read_regular(config)
        after = _DTYPE.sub(rb"\g<key>" + dtype.encode(), before)
        if after != before:
            config.write_bytes(after)
            _log.info(f"{CONFIG} names {dtype} as the weights' type")


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its sub-folders, except weights and sub-folders that hold weights."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or is_temporary(path.name) or path.suffix == MERGE_FOLDER or has_record(path):
            continue
        if path.is_file() and path.name != MANIFEST and not path.name.endswith(_OF_WEIGHTS):
            yield path
        elif path.is_dir() and path.resolve() not in folder.resolve().parents:
            if any(file.name.endswith(_OF_WEIGHTS) for file in path.rglob("*")):
                _log.info(f"{path} is neither averaged nor copied, because it has its own weights")
            else:
                yield from _files_below(path)


def write_index(template: SavedNetwork, folder: Path) -> None:
    """Write the index of a folder's new shards, if the template has one, with the new number of bytes."""
    for index in index_files(template.files[0].parent) if len(template.files) > 1 else ():
        with reading(index):
            content = json.loads(read_regular(index))
        tensors = [tensor for file in template.files for tensor in read_index(folder / file.name).values()]
        content["metadata"] = {"total_size": sum(tensor.n_bytes for tensor in tensors)}
        (folder / index.name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def copy_file(source: BinaryIO, path: Path, target: BinaryIO) -> None:
    """Copy the rest of an open file, whose path is ``path``, into another one.

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
