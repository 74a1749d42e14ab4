"""Print the private memory of a process after five steps, in kilobytes.

python -m tests.benchmarks.search_step_memory BASIS.npy WHAT

WHAT is ``plain`` for gradients only, or the search's alpha.
"""

import re
import sys
from pathlib import Path

import numpy as np

from dimred.stages.subspace_train_step import SubspaceTrainStep
from tests.helpers.networks import PlainBasis
from tests.helpers.resnet18 import PlainGradient, network_and_batches


def main(basis: str, what: str) -> None:
    network, batches = network_and_batches()
    step = (
        PlainGradient(network)
        if what == "plain"
        else SubspaceTrainStep(network, PlainBasis(np.load(basis, mmap_mode="r")), alpha=float(what))
    )
    for batch in batches[:5]:
        step(*batch)[0].asnumpy()
    print(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
