"""Saves a basis and dies before the n-th time something reaches the disk: ``python save_and_die.py BASIS OUT N``.

Ends with status 0 where there are fewer than n such times.
"""

import os
import sys
from pathlib import Path

from dimred.subspace.basis import load_basis

basis, left = load_basis(sys.argv[1]), int(sys.argv[3])


def dying(real):
    def call(*arguments):
        global left
        left -= 1
        if left == 0:
            os._exit(9)  # as by a kill: nothing is cleaned up
        return real(*arguments)

    return call


os.fsync, Path.replace = dying(os.fsync), dying(Path.replace)
basis.save(sys.argv[2], overwrite=True)
