"""Write a merged network with the names, types, shards and metadata of its template: the last input, or ``--rest``."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import safe_open

from dimred.averaging.mean import BLOCK, buffer, stream_mean
from dimred.checkpoints.checkpoint_io import open_checkpoint
from dimred.checkpoints.ckpt_format import renew_ckpt_crc
from dimred.checkpoints.safetensors_format import safetensors_header
from dimred.checkpoints.stored_tensor import BFLOAT16, TEXT, StoredTensor, reading, write_exactly
from dimred.errors import CheckpointError, ConfigError, check_choice, shown
from dimred.io.system import reserve
from dimred.merging.companions import copy_companions, copy_file, write_index
from dimred.merging.folder import read_one
from dimred.merging.lora import LowRankMean, adapter_config, write_config
from dimred.merging.saved_network import SavedNetwork

DTYPES: dict[str, np.dtype | str] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": BFLOAT16,
}
_OF_BYTES = re.compile("hash|sha|checksum|digest|crc|md5", re.IGNORECASE)
# Names of a spectral norm's vectors in PyTorch (weight_u, parametrizations.weight.0._u) and Flax (kernel/u).
_VECTOR = re.compile(r"(?:^|[._/])[uv]$")
_UNIT_TOLERANCE = 0.01  # bfloat16 rounds each entry
_DIGEST = re.compile("(0x)?[0-9a-f]{6,}", re.IGNORECASE)
# Numbers from this size on are rounded to infinity.
_TOO_LARGE: dict[np.dtype | str, float] = {
    np.dtype("<f2"): 65_520.0,
    np.dtype("<f4"): (2 - 2**-24) * 2.0**127,
    BFLOAT16: (2 - 2**-8) * 2.0**127,
}


def check_target(out: Path, template: SavedNetwork, dtype: str | None) -> None:
    """Check that ``out`` can hold a network like ``template`` with this type of weights; ConfigError if not."""
    suffix = template.files[0].suffix
    if dtype is not None:
        check_choice("dtype", dtype, DTYPES)
    if not out.parent.is_dir():
        raise ConfigError(f"out is {str(out)!r}, in a folder that does not exist; make it first", argument="out")
    kind = ""
    if adapter_config(template):
        kind = "LoRA adapters"
    elif len(template.files) > 1:
        kind = "in several files"
    is_folder = kind or template.path.is_dir()
    if kind and out.suffix:
        raise ConfigError(
            f"out is {str(out)!r}, but the checkpoints are {kind}; name a folder, without an ending", argument="out"
        )
    if out.suffix not in (".safetensors", suffix, *([""] if is_folder else [])):
        endings = " or ".join(dict.fromkeys([suffix, ".safetensors"]))
        raise ConfigError(
            f"out is {str(out)!r}; its name must end in {endings}, for checkpoints in {suffix}", argument="out"
        )
    if dtype is not None and (out.suffix or suffix) != ".safetensors":
        raise ConfigError(f"dtype is {dtype!r}, which needs a .safetensors file; out is {str(out)!r}", argument="dtype")


def write_network(
    checkpoints: Sequence[SavedNetwork],
    coefficients: np.ndarray,
    out: Path,
    template: SavedNetwork,
    dtype: str | None = None,
    *,
    lora_rank: int | None = None,
) -> dict[str, str]:
    """Write the template's entries, with the mean sum(c_i x_i) / sum(c_i) in place of its weights.

    BatchNorm statistics are averaged too if the template is one of the checkpoints. The vectors of a spectral norm are
    scaled to norm 1 again, as the norm that they estimate would be too small otherwise. The factors of LoRA adapters
    come from ``LowRankMean``, the mean of the adapters' products.

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
    writer = _MeanWriter(checkpoints, coefficients, template, dtype, lora_rank)
    notes = {}
    if writer.unit_vectors:
        notes["spectral_norm"] = f"{len(writer.unit_vectors)} vectors are averages, scaled to norm 1"
    if out.suffix:
        writer.write(template.files[0], out)
        return notes
    out.mkdir()
    for file in template.files:
        writer.write(file, out / file.name)
    copy_companions(template, out, dtype)
    write_index(template, out)
    if writer.lora is not None:
        write_config(out, writer.lora)
        notes["lora"] = str(writer.lora)
    return notes


class _MeanWriter:
    """Writes files like the template's; the arguments are as for ``write_network``.

    Attributes:
        unit_vectors: names of the vectors that are scaled to norm 1.
        lora: the mean of adapters; None for other checkpoints.
    """

    def __init__(
        self,
        checkpoints: Sequence[SavedNetwork],
        coefficients: np.ndarray,
        template: SavedNetwork,
        dtype: str | None,
        lora_rank: int | None,
    ) -> None:
        self._checkpoints = checkpoints
        self._coefficients = coefficients
        self._template = template
        self._dtype = dtype
        self._mean_names = set(checkpoints[-1].layout.names)
        if template in checkpoints:
            self._mean_names |= set(template.statistics)
        self._shapes = {name: tensor.shape for name, tensor in template.tensors.items()}
        self.unit_vectors: set[str] = set()
        if np.count_nonzero(coefficients) > 1:
            self.unit_vectors = _unit_vectors(checkpoints[-1])
        self.lora: LowRankMean | None = None
        if adapter_config(template):
            self.lora = LowRankMean(checkpoints, coefficients, lora_rank)
            self._shapes |= self.lora.shapes

    def write(self, path: Path, target: Path) -> None:
        """Write a new file with the entries of one of the template's files."""
        inside = [(name, tensor) for name, tensor in self._template.tensors.items() if tensor.file == path]
        places = dict(sorted(inside, key=lambda pair: (pair[1].pieces[:1], pair[0])))  # in the order of their bytes
        with open_checkpoint(path) as source, target.open("x+b") as file:
            if target.suffix == ".safetensors":
                places = self._copy_as_safetensors(source, path, places, file)
            else:
                copy_file(source, path, file)
                file.flush()
            self._write_means(file.fileno(), {name: places[name] for name in places if name in self._mean_names})
            if target.suffix == ".ckpt":
                renew_ckpt_crc(file, target)

    def _copy_as_safetensors(
        self, source: BinaryIO, path: Path, places: Mapping[str, StoredTensor], file: BinaryIO
    ) -> dict[str, StoredTensor]:
        """Write the header and all entries that have no mean; return the new place of every entry."""
        types = {name: place.dtype for name, place in places.items() if place.dtype != TEXT}
        if self._dtype is not None:
            types |= dict.fromkeys(self._mean_names & types.keys(), DTYPES[self._dtype])
        entries = {name: (dtype, self._shapes[name]) for name, dtype in types.items()}
        header, targets = safetensors_header(Path(file.name), entries, _texts_of(source, path, places))
        file.write(header)
        file.flush()
        ends = [start + size for target in targets.values() for start, size in target.pieces]
        reserve(file.fileno(), max([len(header), *ends]))  # fails now if the disk is too full
        for name in targets.keys() - self._mean_names:
            content = np.empty(places[name].n_bytes, np.uint8)
            places[name].read_bytes(source.fileno(), 0, content)
            write_exactly(file.fileno(), content, targets[name].pieces[0][0])
        return targets

    def _write_means(self, descriptor: int, means: Mapping[str, StoredTensor]) -> None:
        """Compute the means of a file's entries, and write them to their places."""

        def write(name: str, start: int, mean: np.ndarray) -> None:
            dtype = means[name].dtype
            if _TOO_LARGE.get(dtype, np.inf) <= max(mean.max(), -mean.min()) < np.inf:
                raise CheckpointError(f"The mean of {name!r} has a number that is too large for {dtype}")
            _write_entries(descriptor, means[name], start, mean)

        factors = () if self.lora is None else self.lora.shapes
        stream_mean(self._checkpoints, self._coefficients, [name for name in means if name not in factors], write)
        for name in self.unit_vectors & means.keys():
            vector = means[name].read(descriptor).astype(np.float64).reshape(-1)
            _write_entries(descriptor, means[name], 0, vector / (np.linalg.norm(vector) or 1.0))
        if self.lora is not None:
            for name, values in self.lora.factors():
                if name in means:  # otherwise another shard holds it
                    write(name, 0, values.reshape(-1))


def _unit_vectors(checkpoint: SavedNetwork) -> set[str]:
    """Return the names of the unit vectors u and v by which a spectral norm estimates the largest singular value."""

    def is_unit_vector(name: str) -> bool:
        shape = checkpoint.tensors[name].shape
        if not _VECTOR.search(name) or max(shape, default=1) < 2 or max(shape) != math.prod(shape):
            return False
        return math.isclose(np.linalg.norm(checkpoint.read(name).astype(np.float64)), 1, abs_tol=_UNIT_TOLERANCE)

    return {name for name in checkpoint.layout.names if is_unit_vector(name)}


def _texts_of(file: BinaryIO, path: Path, places: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Read the texts to write as metadata: a ``.safetensors`` file's own, or the texts of a ``.ckpt`` file.

    Hashes, such as ``modelspec.hash_sha256`` and ``sshs_model_hash``, are left out: they belong to other weights.
    """
    if path.suffix == ".safetensors":
        with reading(path), safe_open(path, "numpy") as tensors:
            metadata = tensors.metadata() or {}
        return {key: text for key, text in metadata.items() if not (_OF_BYTES.search(key) and _DIGEST.fullmatch(text))}
    texts = {name: str(place.read(file.fileno())) for name, place in places.items() if place.dtype == TEXT}
    return {"format": "ms"} | texts


def _write_entries(descriptor: int, target: StoredTensor, start: int, values: np.ndarray) -> None:
    """Write float64 values, rounded once, into a file: as the entries from ``start`` on of the tensor ``target``."""
    content = round_to(values, target.dtype).view(np.uint8)
    position = 0
    for offset, length in target.ranges(start * target.storage.itemsize, content.size):
        write_exactly(descriptor, content[position : position + length], offset)
        position += length


def round_to(values: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """Round float64 values once, to nearest and ties to even.

    Args:
        values: float64 (n,).
        dtype: a NumPy type, or ``BFLOAT16``.

    Returns:
        The values (n,) in this type; bfloat16 as its bits, uint16. Those that are too large become infinite.
    """
    if isinstance(dtype, np.dtype):
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    bits = buffer("bits", max(BLOCK, len(values)), np.uint32)[: len(values)]
    single = bits.view(np.float32)
    halves = bits.view("<u2")
    with np.errstate(over="ignore"):
        np.copyto(single, values, casting="same_kind")
    single[np.isnan(single)] = np.nan  # a NaN whose bits are all set would be rounded to -0.0
    # Adding half of the last bit rounds, but is wrong if the float32 lies half way between two bfloat16. Then the
    # float64 that it was rounded from decides; for a true tie, the even one is taken.
    ties = np.flatnonzero(halves[::2] == 0x8000)
    doubles = np.abs(values[ties])
    singles = np.abs(single[ties])
    bits[ties] -= (doubles < singles) | ((doubles == singles) & (bits[ties] & 0x10000 == 0))
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
