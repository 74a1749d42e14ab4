"""One digest for a vector of weights, whatever file it stands in: SHA-256 over the SHA-256 of its chunks.

A chunk can be hashed without those before it, so that columns can be hashed block by block in any order.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

CHUNK = 65_536  # weights; columns are hashed, read and multiplied in multiples of it


def chunk_digests(rows: np.ndarray) -> np.ndarray:
    """Compute the SHA-256 of each chunk of 65,536 columns; the last chunk may be narrower.

    Args:
        rows: float32 (width,), or (k, width): then a chunk is hashed row after row.

    Returns:
        uint8 (chunks, 32).
    """
    digests = []
    for start in range(0, rows.shape[-1], CHUNK):
        chunk = hashlib.sha256()
        for row in np.atleast_2d(rows):
            chunk.update(np.ascontiguousarray(row[start : start + CHUNK], "<f4").data)
        digests.append(chunk.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def digest_of_chunks(digests: np.ndarray) -> str:
    """Compute the digest of a vector, or of rows, from the ``chunk_digests`` of all its columns in order."""
    return hashlib.sha256(digests.tobytes()).hexdigest()


def vector_digest(parts: Iterable[np.ndarray]) -> str:
    """Compute the digest, 64 hexadecimal digits, of arrays of any shape, one after the other, in C order as float32."""
    digests, chunk, room = [], hashlib.sha256(), CHUNK
    for part in parts:
        rest = np.ascontiguousarray(part, "<f4").reshape(-1)
        while rest.size:
            piece, rest = rest[:room], rest[room:]
            chunk.update(piece.data)
            room -= piece.size
            if room == 0:
                digests.append(chunk.digest())
                chunk, room = hashlib.sha256(), CHUNK
    if room < CHUNK:
        digests.append(chunk.digest())
    return hashlib.sha256(b"".join(digests)).hexdigest()
