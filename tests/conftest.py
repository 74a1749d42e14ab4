"""Each of pytest-xdist's workers keeps to a core of its own, and with it every program that its tests start.

MindSpore's and oneDNN's threads spin while they wait: two programs with two threads each on two cores spend a fifth of
their processor time in ``sched_yield``. Five files of pipelines and train_step, two workers: 330 s instead of 396 s, of
which the kernel took 28 s instead of 112 s.
"""

import os

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if _WORKER:
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_CORES[int(_WORKER.removeprefix("gw")) % len(_CORES)]})
