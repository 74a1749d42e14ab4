"""On hosts with AVX-512, the oneDNN inside MindSpore computes convolutions with its reference kernel.

oneDNN 3.10.1 in MindSpore 2.10 does so for every convolution larger than 1 x 1, 20 to 100 times slower than with its
AVX2 kernel. We know of no report. On a host with AVX-512, ``tests/workarounds`` fails once the fault is gone.
"""

import os
from pathlib import Path

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"


def has_avx512() -> bool:
    """Return whether this host's processor offers AVX-512; False if that can't be read."""
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False


def cap_onednn() -> None:
    """Cap oneDNN's instruction set at AVX2 on a host with AVX-512, unless the user's environment sets the cap.

    This must run before MindSpore's first primitive, because oneDNN reads the variable then.
    """
    if "DNNL_MAX_CPU_ISA" not in os.environ and has_avx512():  # the variable's old name; the user's choice counts
        os.environ.setdefault(ISA_VARIABLE, "AVX2")
