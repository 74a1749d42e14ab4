"""Whether the rows of a basis are what they should be: finite, orthonormal, unchanged since they were written."""

from pathlib import Path

import numpy as np

from dimred.errors import BasisMismatchError
from dimred.files.digest import chunk_digests, digest_of_chunks
from dimred.subspace.orthonormalise import deviation

__all__ = ["check_orthonormal", "rows_digest"]

# Rows from elsewhere may have been orthonormalised in float32; what is further off is not an orthonormal basis.
_FOREIGN_TOLERANCE = 1e-3


def rows_digest(components: np.ndarray) -> str:
    """The digest that ties a ``.h5`` file to its ``.npy`` file.

    SHA-256 over the SHA-256 of each chunk of 65,536 columns, row after row, as little-endian float32.

    Args:
        components: float32 (k, M), C order; may be memory-mapped.
    """
    return digest_of_chunks(chunk_digests(components))


def check_orthonormal(components: np.ndarray, path: Path, strip: int = 16_384) -> float:
    """Measure max |P P' - I| in float64, strip by strip.

    Args:
        components: (k, M), float32 or float64; may be memory-mapped.

    Raises:
        BasisMismatchError: a number is not finite, or two rows are not orthonormal; the first such is named.
    """
    row_gram = np.zeros((len(components), len(components)))
    for start in range(0, components.shape[1], strip):
        with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused below
            part = np.asarray(components[:, start : start + strip], np.float64)
        if not np.isfinite(part).all():
            row, column = np.argwhere(~np.isfinite(part))[0]
            raise BasisMismatchError(
                f"{path} has {part[row, column]} in row {row}, column {start + column}; every entry must be finite. "
                "Make it again with dimred pca."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # infinite products are refused below
            row_gram += part @ part.T
    found = deviation(row_gram)
    if not found <= _FOREIGN_TOLERANCE:
        off = np.abs(row_gram - np.eye(len(row_gram)))
        i, j = np.unravel_index(int(np.nan_to_num(off, nan=np.inf).argmax()), off.shape)
        what = f"row {i} has squared length" if i == j else f"rows {i} and {j} have inner product"
        raise BasisMismatchError(
            f"{path} is not an orthonormal basis: {what} {row_gram[i, j]:.6g} instead of {int(i == j)} (tolerance "
            f"{_FOREIGN_TOLERANCE}). It may be transposed, unnormalised, or damaged."
        )
    return found
