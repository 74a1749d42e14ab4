"""One digest for one weight vector, whatever file it stands in."""

import hashlib

import numpy as np

__all__ = ["CHUNK", "WeightDigest", "digest_of_chunks"]

CHUNK = 65_536  # weights; columns are hashed, read and multiplied in multiples of it


class WeightDigest:
    """SHA-256 over the SHA-256 of each chunk of 65,536 float32 weights (little-endian; the last may be
    shorter).

    A chunk can be hashed without those before it: so a pass over the columns can stop, be stored, and go on,
    and the digest is the same for a ``.ckpt`` and a ``.safetensors`` file of the same weights.
    """

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._current = hashlib.sha256()
        self._room = CHUNK

    def update(self, weights: np.ndarray) -> None:
        """Add the next weights of the vector (any shape, any float type; taken in C order as float32)."""
        flat = np.ascontiguousarray(weights, dtype="<f4").reshape(-1)
        start = 0
        while start < flat.size:
            piece = flat[start : start + self._room]
            self._current.update(piece.data)
            start += piece.size
            self._room -= piece.size
            if self._room == 0:
                self._close_chunk()

    def hexdigest(self) -> str:
        """The digest of everything added, as 64 hexadecimal digits; nothing may be added afterwards."""
        if self._room < CHUNK:
            self._close_chunk()
        return digest_of_chunks(b"".join(self._done))

    def _close_chunk(self) -> None:
        self._done.append(self._current.digest())
        self._current = hashlib.sha256()
        self._room = CHUNK


def digest_of_chunks(chunk_digests: bytes) -> str:
    """The digest of a vector from the SHA-256 (32 bytes each) of its chunks, in order."""
    return hashlib.sha256(chunk_digests).hexdigest()
