"""A merged network in the layout of its inputs: format, names, types, shards and metadata are those of the last one.

Single files appear whole or not at all; so does a folder of shards, which is filled under a temporary name.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import safe_open

from dimred.errors import ConfigError, FaultError, shown
from dimred.files.atomic import atomic_folder, describe_os_error, open_atomic
from dimred.merging.combine import Target, write_means, write_part
from dimred.merging.inputs import Checkpoint, read_one
from dimred.weights.checkpoint_io import read_index
from dimred.weights.ckpt_format import renew_ckpt_crc
from dimred.weights.safetensors_format import safetensors_header
from dimred.weights.stored_tensor import BFLOAT16, TEXT, StoredTensor, write_exactly

DTYPES: dict[str, np.dtype | str] = {
    "float64": np.dtype("<f8"), "float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": BFLOAT16
}  # fmt: skip
_CHECKSUM = "dimred_crc32"  # of dimred's own files: not the result's
_COMPANIONS = (".json", ".txt", ".model", ".jinja")  # a model's configuration and tokenizer
_NOT_COMPANIONS = ("trainer_state.json", "manifest.json")
_COPY_BYTES = 1 << 20
_SAMPLES, _SAMPLE_BYTES = 1024, 1 << 14


def check_target(out: Path, template: Checkpoint, dtype: str | None) -> None:
    """Whether ``out`` can hold a network like ``template`` with this dtype; ConfigError says why it can't."""
    suffix = template.files[0].suffix
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out is {str(out)!r}, in a folder that does not exist; make it first")
    if len(template.files) > 1 and out.suffix:
        raise ConfigError(f"--out is {str(out)!r}, but the checkpoints are in shards; name a folder, without an ending")
    if out.suffix not in (".safetensors", suffix, *([""] if template.is_folder else [])):
        raise ConfigError(f"--out is {str(out)!r}; its name must end in {suffix}, as the checkpoints' do")
    if dtype is not None and (out.suffix or suffix) != ".safetensors":
        raise ConfigError(f"--dtype is {dtype!r}, which needs a .safetensors file; --out is {str(out)!r}")


@contextmanager
def name_faults(out: Path) -> Iterator[None]:
    """Turn an error of the disk inside the block into a FaultError that names ``out``, as the user typed it."""
    try:
        yield
    except OSError as error:
        raise FaultError(f"--out is {str(out)!r}, which can't be written ({describe_os_error(error)})") from error


def write_network(
    checkpoints: Sequence[Checkpoint],
    coefficients: np.ndarray,
    out: Path,
    template: Checkpoint,
    dtype: str | None = None,
    *,
    durable: bool = True,
) -> None:
    """Write sum(c_i x_i) / sum(c_i) in place of the template's weights, and its other entries as they are.

    Args:
        checkpoints: of one network.
        coefficients: c, float64 (N,).
        out: a file; or a folder, which gets the template's shards, index, configuration and tokenizer.
        template: has every weight of ``checkpoints``; usually the last of them.
        dtype: of the weights; default the template's.
        durable: wait for the disk.

    Raises:
        OSError: the disk is full, or fails; nothing is left.
        CheckpointError: as ``write_means``.
    """
    averaged = {*checkpoints[-1].layout.names, *(template.statistics if template in checkpoints else ())}

    def write_file(number: int, target: Path) -> None:
        places = {name: template.tensors[name][1] for name in template.names_in(number)}
        with template.open(number) as source, open_atomic(target, durable=durable) as file:
            descriptor = file.fileno()
            if target.suffix == ".safetensors":
                own = {name: place.dtype for name, place in places.items() if place.dtype != TEXT}
                types = own | (dict.fromkeys(averaged & own.keys(), DTYPES[dtype]) if dtype else {})
                texts = _texts_of(source, template.files[number], places)
                head, targets = safetensors_header({name: (types[name], places[name].shape) for name in types}, texts)
                file.write(head)
                file.flush()
                end = max([len(head), *(sum(place.pieces[0]) for place in targets.values())])
                os.posix_fallocate(descriptor, 0, end)  # a full disk is noticed here
                for name in targets.keys() - averaged:
                    copied = np.empty(places[name].n_bytes, np.uint8)
                    places[name].read_bytes(source.fileno(), template.files[number], 0, copied)
                    write_exactly(descriptor, copied, targets[name].pieces[0][0])
            else:
                shutil.copyfileobj(source, file, _COPY_BYTES)
                file.flush()
                targets = places
            means = {name: Target(descriptor, place) for name, place in targets.items() if name in averaged}
            write_means(checkpoints, coefficients, means)
            if target.suffix == ".ckpt":
                renew_ckpt_crc(file, target)

    if out.suffix:
        write_file(0, out)
        return
    with atomic_folder(out) as folder:
        for number, file in enumerate(template.files):
            write_file(number, folder / file.name)
        _copy_companions(template, folder)


def _texts_of(file: BinaryIO, path: Path, places: Mapping[str, StoredTensor]) -> dict[str, str]:
    """The metadata of a ``.safetensors`` file; the texts in a ``.ckpt`` file, which become metadata."""
    if path.suffix == ".safetensors":
        with safe_open(path, "numpy") as opened:
            return {key: text for key, text in (opened.metadata() or {}).items() if key != _CHECKSUM}
    texts = {name: str(place.read(file.fileno(), path)) for name, place in places.items() if place.dtype == TEXT}
    return {"format": "ms"} | texts


def _copy_companions(template: Checkpoint, folder: Path) -> None:
    """Configuration, tokenizer and index: what a framework needs to load the folder."""
    for file in sorted(template.files[0].parent.iterdir()):
        if file.is_file() and file.suffix in _COMPANIONS and file.name not in _NOT_COMPANIONS:
            shutil.copyfile(file, folder / file.name)
    for index in folder.glob("*.safetensors.index.json"):
        content = json.loads(index.read_bytes())
        written = [place for file in template.files for place in read_index(folder / file.name).values()]
        total = sum(place.n_bytes for place in written)
        if content.get("metadata", {}).get("total_size", total) != total:  # another --dtype
            content["metadata"]["total_size"] = total
            index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def sample_digest(path: Path) -> str:
    """SHA-256 of a file's size and of up to 1,024 evenly spread blocks of 16 KiB.

    It tells two checkpoints apart, which differ nearly everywhere, without reading terabytes again.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    whole = size <= _SAMPLES * _SAMPLE_BYTES
    with path.open("rb") as file:
        for number in range(-(-size // _SAMPLE_BYTES) if whole else _SAMPLES):
            start = number * _SAMPLE_BYTES if whole else number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1)
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return digest.hexdigest()


def put_statistics(candidate: Path, statistics: object) -> None:
    """Write new BatchNorm statistics, name -> array, into a checkpoint; ConfigError where they are anything else."""
    checkpoint = read_one(candidate)
    if not isinstance(statistics, Mapping) or not {*statistics} <= {*checkpoint.statistics}:
        names = shown(checkpoint.statistics[:2])
        raise ConfigError(f"reestimate returned {shown(statistics)}; allowed: statistics by name, such as {names}")
    for name, values in statistics.items():
        number, place = checkpoint.tensors[name]
        array = np.asarray(values, np.float64)
        if array.shape != place.shape:
            raise ConfigError(f"reestimate returned {name!r} with the shape {array.shape}; allowed: {place.shape}")
        if not np.isfinite(array).all():
            raise ConfigError(f"reestimate returned {name!r} with an infinite number or NaN")
        with checkpoint.files[number].open("r+b") as file:
            write_part(Target(file.fileno(), place), 0, array.reshape(-1))
            file.flush()
            if checkpoint.files[number].suffix == ".ckpt":
                renew_ckpt_crc(file, checkpoint.files[number])
