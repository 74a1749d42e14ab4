"""Rows of a basis that dimred did not write: another program's, the caller's, or those of changed files."""

import os
import tempfile
from pathlib import Path

import numpy as np

from dimred.checkpoints.layout import CHUNK
from dimred.errors import BasisMismatchError
from dimred.subspace.spectrum import deviation

# Other programs may orthonormalise in float32; rows with a larger deviation are not an orthonormal basis.
_TOLERANCE = 1e-3
_STRIP = 16_384  # columns that are checked at once


def as_float32(components: np.ndarray) -> np.ndarray:
    """Return rows (k, M) of float32 or float64 as C-ordered float32, in an unnamed temporary file."""
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR")) as file:
        rows = np.memmap(file, np.float32, "w+", shape=components.shape)
    with np.errstate(over="ignore"):  # infinite numbers are refused when the rows are checked
        for start in range(0, components.shape[1], CHUNK):
            rows[:, start : start + CHUNK] = components[:, start : start + CHUNK]
    return rows


def check_orthonormal(components: np.ndarray, path: Path | str) -> None:
    """Check that max |P P' - I|, measured in float64, is at most 1e-3, for rows (k, M) of ``path``.

    Raises:
        BasisMismatchError: a number is not finite, or rows are not orthonormal; the message names the place.
    """
    row_gram = np.zeros((len(components), len(components)))
    for start in range(0, components.shape[1], _STRIP):
        with np.errstate(invalid="ignore"):  # a signalling NaN, which is refused below
            part = np.asarray(components[:, start : start + _STRIP], np.float64)
        if not np.isfinite(part).all():
            row, column = np.argwhere(~np.isfinite(part))[0]
            raise BasisMismatchError(
                f"{path} has {part[row, column]} in row {row}, column {start + column}; every entry must be finite. "
                "Make it again with dimred pca."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # infinite products are refused below
            row_gram += part @ part.T
    if not deviation(row_gram) <= _TOLERANCE:
        off = np.abs(row_gram - np.eye(len(row_gram)))
        i, j = np.unravel_index(int(np.nan_to_num(off, nan=np.inf).argmax()), off.shape)
        what = f"row {i} has squared length" if i == j else f"rows {i} and {j} have inner product"
        raise BasisMismatchError(
            f"{path} is not an orthonormal basis: {what} {row_gram[i, j]:.6g} instead of {int(i == j)} (tolerance "
            f"{_TOLERANCE}). It may be transposed, unnormalised, or damaged."
        )
