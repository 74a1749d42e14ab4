"""What a test needs of the machine, as marks that skip it elsewhere."""

import platform
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux's /proc")
X86_64 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX-512 is of x86-64 processors")
FULL_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
ANY_NAME = pytest.mark.skipif(
    sys.platform == "darwin", reason="macOS takes no names but UTF-8, and two Unicode forms for one name"
)
