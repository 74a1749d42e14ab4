"""The order and shapes of a network's weights in one long vector, and the digest of such a vector.

The digest is the SHA-256 of the SHA-256 digests of chunks, so that columns can be hashed block by block.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np

from dimred.errors import BasisMismatchError, CheckpointError, ConfigError, check_type, shown

CHUNK = 65_536  # weights; columns are hashed, read and multiplied in multiples of it


def as_array(value: Any) -> np.ndarray:
    """Return an array, MindSpore tensor or parameter as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    array = value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def as_weight(name: str, value: Any) -> np.ndarray:
    """Return a trainable weight as a NumPy array, after checking it.

    Args:
        name: its name, for errors.
        value: an array, MindSpore tensor or parameter.

    Raises:
        ConfigError: it is not an array of floats.
        CheckpointError: a number is not finite in float32.
    """
    array = as_array(value)
    if array.dtype.kind != "f":
        raise ConfigError(
            f"weights has {name!r} as {shown(value)}; give an array, tensor or parameter of floats", argument="weights"
        )
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(array.astype(np.float32, copy=False)).all()
    if not is_finite:
        raise CheckpointError(
            f"weights has {name!r} with numbers that are not finite: the training diverged. Continue from an "
            "earlier checkpoint, with a lower learning rate",
            argument="weights",
        )
    return array


@dataclass(frozen=True)
class WeightLayout:
    """The names and shapes of a network's trainable parameters in order; maps their M numbers to one vector and back.

    Parameter i has shape ``shapes[i]`` and occupies entries ``offsets[i] : offsets[i] + sizes[i]``, in C order.

    Args:
        names: the parameters' names, in the order of ``network.trainable_params()``.
        shapes: their shapes, one per name.

    Raises:
        BasisMismatchError: there are no names, a name occurs twice, or there is not one shape for each name.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise BasisMismatchError("The layout has no parameters: nothing in the network is trainable.")
        if len(self.names) != len(self.shapes):
            raise BasisMismatchError(
                f"The layout has {len(self.names)} names and {len(self.shapes)} shapes; it needs one shape for each."
            )
        name, count = Counter(self.names).most_common(1)[0]
        if count > 1:
            raise BasisMismatchError(f"The layout names the parameter {name!r} twice; names must be unique.")

    @classmethod
    def from_network(cls, network: Any) -> "WeightLayout":
        """Make the layout of the trainable parameters of a MindSpore cell; ConfigError for anything else."""
        if not hasattr(network, "trainable_params"):
            raise ConfigError(
                f"network is {shown(network)}; it must be a MindSpore cell, or give layout instead", argument="network"
            )
        parameters = network.trainable_params()
        return cls(tuple(p.name for p in parameters), tuple(_plain(p.shape) for p in parameters))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Any]) -> "WeightLayout":
        """Make the layout of ``weights`` (name -> array), in the mapping's order; ConfigError for anything else."""
        check_type("weights", weights, Mapping, "a mapping: name -> array")
        return cls(tuple(weights), tuple(_plain(value.shape) for value in weights.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes[:-1], initial=0))

    @cached_property
    def size(self) -> int:
        """Return M, the length of the vector."""
        return sum(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 over names, order and shapes, as 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.to_json(), separators=(",", ":")).encode()).hexdigest()

    def flatten(self, weights: Mapping[str, Any]) -> np.ndarray:
        """Concatenate the weights into one vector, in the layout's order.

        Args:
            weights: name -> array, tensor or parameter; other names are ignored.

        Returns:
            The vector, float32 (M,).

        Raises:
            ConfigError: ``weights`` is not a mapping.
            CheckpointError: a parameter is missing or has another shape.
        """
        check_type("weights", weights, Mapping, "a mapping: name -> array, tensor or parameter")
        arrays = {name: as_array(weights[name]) for name in self.names if name in weights}
        if misfit := self.misfit(arrays):
            raise CheckpointError(f"The weights do not match the layout: {misfit}.")
        return np.concatenate([arrays[name].ravel() for name in self.names], dtype=np.float32, casting="unsafe")

    def unflatten(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters in ``vector`` (M,) as views, name -> array; BasisMismatchError for another length."""
        if vector.shape != (self.size,):
            raise BasisMismatchError(f"The vector has shape {vector.shape}; this layout needs ({self.size},).")
        return {
            name: vector[offset : offset + size].reshape(shape)
            for name, shape, offset, size in zip(self.names, self.shapes, self.offsets, self.sizes, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain lists for ``json.dump``: {"names": [...], "shapes": [[...], ...]}."""
        return {"names": list(self.names), "shapes": [list(shape) for shape in self.shapes]}

    @classmethod
    def from_json(cls, data: Any) -> "WeightLayout":
        """Make the layout that ``to_json`` wrote; BasisMismatchError for anything else."""
        try:
            names = tuple(data["names"])
            shapes = tuple(tuple(shape) for shape in data["shapes"])
            is_valid = all(type(name) is str for name in names) and all(
                type(length) is int and 0 <= length < 1 << 63 for shape in shapes for length in shape
            )
        except (TypeError, KeyError):
            is_valid = False
        if not is_valid:
            raise BasisMismatchError(
                'A stored layout must be {"names": [texts], "shapes": [lists of whole numbers >= 0]}.'
            )
        return cls(names, shapes)

    def misfit(self, tensors: Mapping[str, Any]) -> str | None:
        """Explain why these ``tensors`` of a checkpoint do not include the layout's weights; None if they do."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in tensors:
                return f"it has no parameter {name!r} {shape}"
            if tensors[name].shape != shape:
                return f"its parameter {name!r} has shape {tensors[name].shape} instead of {shape}"
        return None

    def first_difference(
        self, other: "WeightLayout", title: str = "this layout", other_title: str = "the other layout"
    ) -> str:
        """Describe the first difference between this layout and ``other``, which must differ.

        Args:
            other: the other layout.
            title, other_title: what the description calls the two.
        """
        pairs = [zip(layout.names, layout.shapes, strict=True) for layout in (self, other)]
        numbered = enumerate(zip_longest(*pairs))
        number, (own, others) = next((number, pair) for number, pair in numbered if pair[0] != pair[1])
        text = f"parameter {number} {_entry_in(title, own)} and {_entry_in(other_title, others)}"
        if own and others and own[0] != others[0] and own[0] in other.names:
            text += f" ({other_title} has {own[0]!r} elsewhere: the order differs)"
        return text


def layout_of(network: Any, layout: WeightLayout | None) -> WeightLayout | None:
    """Return the layout if there is one, else the network's, else None; ConfigError if either has a wrong type."""
    check_type("layout", layout, (WeightLayout, type(None)), "a dimred.WeightLayout")
    if layout is not None or network is None:
        return layout
    return WeightLayout.from_network(network)


def _entry_in(title: str, entry: tuple[str, tuple[int, ...]] | None) -> str:
    return f"is missing from {title}" if entry is None else f"is {entry[0]!r} {entry[1]} in {title}"


def _plain(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(length) for length in shape)


def hash_columns(digest: "hashlib._Hash", rows: np.ndarray) -> None:
    """Add the next columns to the digest of a vector or of rows: the SHA-256 of each chunk of 65,536 columns.

    Args:
        digest: the SHA-256 to update.
        rows: float32 (width,), or (k, width): then a chunk is hashed row after row. Only the last chunk of all may be
            narrower.
    """
    for start in range(0, rows.shape[-1], CHUNK):
        chunk = hashlib.sha256()
        for row in np.atleast_2d(rows):
            chunk.update(np.ascontiguousarray(row[start : start + CHUNK], "<f4").data)
        digest.update(chunk.digest())


def vector_digest(vector: np.ndarray) -> str:
    """Compute the digest, 64 hexadecimal digits, of a vector (M,) or of rows (k, M)."""
    digest = hashlib.sha256()
    hash_columns(digest, vector)
    return digest.hexdigest()


def weights_digest(weights: Iterable[np.ndarray]) -> str:
    """Compute ``vector_digest`` of the vector of these weights, in their order, without making the vector."""
    digest = hashlib.sha256()
    chunk = hashlib.sha256()
    left = CHUNK
    for weight in weights:
        row = np.ascontiguousarray(weight, "<f4").reshape(-1)
        while row.size:
            part = row[:left]
            row = row[left:]
            chunk.update(part.data)
            left -= part.size
            if left == 0:
                digest.update(chunk.digest())
                chunk = hashlib.sha256()
                left = CHUNK
    if left < CHUNK:
        digest.update(chunk.digest())
    return digest.hexdigest()


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Compute the digest, 64 hexadecimal digits, of arrays by name, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
