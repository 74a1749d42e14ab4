"""Write a merged network with the names, types, shards and metadata of its template: the last input, or ``--rest``."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import safe_open

from dimred.averaging.mean import BLOCK, buffer, stream_mean
from dimred.checkpoints.checkpoint_io import Checkpoint, open_checkpoint, read_index
from dimred.checkpoints.ckpt_format import renew_ckpt_crc
from dimred.checkpoints.safetensors_format import safetensors_header
from dimred.checkpoints.stored_tensor import BFLOAT16, TEXT, StoredTensor, reading, write_exactly
from dimred.errors import CheckpointError, ConfigError, shown
from dimred.merging.inputs import is_folder, read_one
from dimred.merging.lora import LowRankMean, adapter_config, write_config
from dimred.merging.record import CARD, INPUT_CARD

DTYPES: dict[str, np.dtype | str] = {
    "float64": np.dtype("<f8"), "float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": BFLOAT16
}  # fmt: skip
_COMPANIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")  # a model's configuration, tokenizer and code
_NOT_COMPANIONS = ("trainer_state.json", "manifest.json")
_COPY_BYTES = 1 << 20
# Numbers from this size on are rounded to infinity.
_TOO_LARGE: dict[np.dtype | str, float] = {
    np.dtype("<f2"): 65_520.0, np.dtype("<f4"): (2 - 2**-24) * 2.0**127, BFLOAT16: (2 - 2**-8) * 2.0**127
}  # fmt: skip


def check_target(out: Path, template: Checkpoint, dtype: str | None) -> None:
    """Check that ``out`` can hold a network like ``template`` with this dtype.

    Raises:
        ConfigError: ``out`` or ``dtype`` does not fit; the message says why.
    """
    suffix = template.files[0].suffix
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out is {str(out)!r}, in a folder that does not exist; make it first")
    kind = "LoRA adapters" if adapter_config(template) else "in shards" if len(template.files) > 1 else ""
    if kind and out.suffix:
        raise ConfigError(f"--out is {str(out)!r}, but the checkpoints are {kind}; name a folder, without an ending")
    if out.suffix not in (".safetensors", suffix, *([""] if is_folder(template) else [])):
        endings = " or ".join(dict.fromkeys([suffix, ".safetensors"]))
        raise ConfigError(f"--out is {str(out)!r}; its name must end in {endings}, for checkpoints in {suffix}")
    if dtype is not None and (out.suffix or suffix) != ".safetensors":
        raise ConfigError(f"--dtype is {dtype!r}, which needs a .safetensors file; --out is {str(out)!r}")


def write_network(
    checkpoints: Sequence[Checkpoint],
    coefficients: np.ndarray,
    out: Path,
    template: Checkpoint,
    dtype: str | None = None,
    *,
    lora_rank: int | None = None,
) -> dict[str, str]:
    """Write the template's entries, with the mean sum(c_i x_i) / sum(c_i) in place of its weights.

    BatchNorm statistics are averaged too if the template is one of the checkpoints. The factors of LoRA adapters are
    those of ``LowRankMean``, the mean of the adapters' products.

    After an error, part of the result may be left in ``out``.

    Args:
        checkpoints: checkpoints of one network.
        coefficients: c, float64 (N,).
        out: a new file; or a new folder, which gets the template's shards, index, configuration and tokenizer.
        template: has every weight of ``checkpoints``; usually the last of them.
        dtype: type of the weights; default the template's.
        lora_rank: largest rank of a mean of adapters; default no limit.

    Returns:
        Entries to add to the record.

    Raises:
        OSError: the disk is full, or fails.
        CheckpointError: as ``stream_mean``; or a mean is too large for its type.
    """
    averaged = {*checkpoints[-1].layout.names, *(template.statistics if template in checkpoints else ())}
    lora = LowRankMean(checkpoints, coefficients, lora_rank) if adapter_config(template) else None
    shapes = {name: tensor.shape for name, tensor in template.tensors.items()} | (lora.shapes if lora else {})

    def write_file(path: Path, target: Path) -> None:
        inside = [(name, tensor) for name, tensor in template.tensors.items() if tensor.file == path]
        places = dict(sorted(inside, key=lambda pair: (pair[1].pieces[:1], pair[0])))  # in the order of their bytes
        with open_checkpoint(path) as source, target.open("x+b") as file:
            descriptor = file.fileno()
            if target.suffix == ".safetensors":
                own = {name: place.dtype for name, place in places.items() if place.dtype != TEXT}
                types = own | (dict.fromkeys(averaged & own.keys(), DTYPES[dtype]) if dtype else {})
                texts = _texts_of(source, path, places)
                typed = {name: (types[name], shapes[name]) for name in types}
                head, targets = safetensors_header(target, typed, texts)
                file.write(head)
                file.flush()
                end = max([len(head), *(sum(place.pieces[0]) for place in targets.values())])
                os.posix_fallocate(descriptor, 0, end)  # fails now if the disk is too full
                for name in targets.keys() - averaged:
                    copied = np.empty(places[name].n_bytes, np.uint8)
                    places[name].read_bytes(source.fileno(), 0, copied)
                    write_exactly(descriptor, copied, targets[name].pieces[0][0])
            else:
                _copy(source, path, file)
                file.flush()
                targets = places
            means = {name: place for name, place in targets.items() if name in averaged}

            def write(name: str, start: int, mean: np.ndarray) -> None:
                dtype = means[name].dtype
                if _TOO_LARGE.get(dtype, np.inf) <= max(mean.max(), -mean.min()) < np.inf:
                    raise CheckpointError(f"The mean of {name!r} has a number that is too large for {dtype}")
                _write_entries(descriptor, means[name], start, mean)

            streamed = [name for name in means if lora is None or name not in lora.shapes]
            stream_mean(checkpoints, coefficients, streamed, write, template.statistics)
            for name, values in lora.factors() if lora else ():
                if name in means:  # of shards, another may hold it
                    write(name, 0, values.reshape(-1))
            if target.suffix == ".ckpt":
                renew_ckpt_crc(file, target)

    if out.suffix:
        write_file(template.files[0], out)
        return {}
    out.mkdir()
    for file in template.files:
        write_file(file, out / file.name)
    _copy_companions(template, out)
    if lora:
        write_config(out, lora)
    return {"lora": str(lora)} if lora else {}


def _texts_of(file: BinaryIO, path: Path, places: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Read the texts to write as metadata: a ``.safetensors`` file's own, or the texts of a ``.ckpt`` file."""
    if path.suffix == ".safetensors":
        with reading(path), safe_open(path, "numpy") as opened:
            return dict(opened.metadata() or {})
    texts = {name: str(place.read(file.fileno())) for name, place in places.items() if place.dtype == TEXT}
    return {"format": "ms"} | texts


def _copy_companions(template: Checkpoint, folder: Path) -> None:
    """Copy the configuration, tokenizer, code and index that a framework loads, and the card under another name."""
    for file in sorted(template.files[0].parent.iterdir()):
        known = file.suffix in _COMPANIONS and file.name not in _NOT_COMPANIONS
        if file.is_file() and (known or file.name == CARD):
            with reading(file):
                opened = file.open("rb")
            with opened, (folder / (file.name if known else INPUT_CARD)).open("wb") as target:
                _copy(opened, file, target)
    for index in folder.glob("*.safetensors.index.json"):
        content = json.loads(index.read_bytes())
        written = [place for file in template.files for place in read_index(folder / file.name).values()]
        total = sum(place.n_bytes for place in written)
        metadata = content.get("metadata")
        if isinstance(metadata, dict) and metadata.get("total_size", total) != total:  # --dtype has changed it
            metadata["total_size"] = total
            index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _copy(source: BinaryIO, path: Path, target: BinaryIO) -> None:
    """Copy an input file; a read error names its ``path``."""
    while True:
        with reading(path):
            piece = source.read(_COPY_BYTES)
        if not piece:
            return
        target.write(piece)


def _write_entries(descriptor: int, place: StoredTensor, start: int, values: np.ndarray) -> None:
    """Write float64 values, rounded once, into a file: as the entries from ``start`` on of the tensor at ``place``."""
    content, done = round_to(values, place.dtype).view(np.uint8), 0
    for offset, length in place.ranges(start * place.storage.itemsize, content.size):
        write_exactly(descriptor, content[done : done + length], offset)
        done += length


def round_to(values: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """Round float64 values once, to nearest and ties to even; bfloat16 is returned as its bits (uint16)."""
    if isinstance(dtype, np.dtype):
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    bits = buffer("bits", max(BLOCK, len(values)), np.uint32)[: len(values)]
    single, halves = bits.view(np.float32), bits.view("<u2")
    with np.errstate(over="ignore"):
        np.copyto(single, values, casting="same_kind")
    single[np.isnan(single)] = np.nan  # a NaN whose bits are all set would be rounded to -0.0
    # Adding half of the last bit rounds, but is wrong if the float32 lies half way between two bfloat16. Then the
    # float64 that it was rounded from decides; for a true tie, the even one is taken.
    ties = np.flatnonzero(halves[::2] == 0x8000)
    exact, rounded = np.abs(values[ties]), np.abs(single[ties])
    bits[ties] -= (exact < rounded) | ((exact == rounded) & (bits[ties] & 0x10000 == 0))
    bits += 0x8000
    return np.ascontiguousarray(halves[1::2])


def put_statistics(candidate: Path, statistics: object) -> None:
    """Write new BatchNorm statistics into a checkpoint.

    Args:
        candidate: the file, or the folder of the shards.
        statistics: name -> array.

    Raises:
        ConfigError: ``statistics`` holds anything other than finite statistics of this network.
    """
    checkpoint = read_one(candidate)
    if not isinstance(statistics, Mapping) or not {*statistics} <= {*checkpoint.statistics}:
        names = shown(checkpoint.statistics[:2])
        raise ConfigError(f"reestimate returned {shown(statistics)}; allowed: statistics by name, such as {names}")
    for name, values in statistics.items():
        tensor = checkpoint.tensors[name]
        array = np.asarray(values, np.float64)
        if array.shape != tensor.shape:
            raise ConfigError(f"reestimate returned {name!r} with the shape {array.shape}; allowed: {tensor.shape}")
        if not np.isfinite(array).all():
            raise ConfigError(f"reestimate returned {name!r} with an infinite number or NaN")
        with tensor.file.open("r+b") as file:
            _write_entries(file.fileno(), tensor, 0, array.reshape(-1))
            file.flush()
            if tensor.file.suffix == ".ckpt":
                renew_ckpt_crc(file, tensor.file)
