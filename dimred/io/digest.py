"""One digest for a vector of weights, whatever file it stands in: SHA-256 over the SHA-256 of its chunks.

A chunk can be hashed without those before it, so that columns can be hashed block by block in any order.
"""

import hashlib

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


def vector_digest(vector: np.ndarray) -> str:
    """Compute the digest, 64 hexadecimal digits, of a vector (M,) or of rows (k, M)."""
    return digest_of_chunks(chunk_digests(vector))
