import numpy as np
import pytest

from dimred.errors import BasisMismatchError
from dimred.subspace.rows_check import check_orthonormal


def test_a_signalling_nan_is_refused_without_a_warning(tmp_path):
    """Found by the fuzzing of ``pca_mat.npy``: its cast to float64 warns."""
    rows = np.eye(2, 5, dtype=np.float32)
    rows.view(np.uint32)[1, 3] = 0x7FA00000
    with pytest.raises(BasisMismatchError, match="has nan in row 1, column 3; every entry must be finite"):
        check_orthonormal(rows, tmp_path / "p.npy")
