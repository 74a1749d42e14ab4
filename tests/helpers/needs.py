"""What a test needs of the machine, as marks that skip it elsewhere."""

import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux's /proc")
FULL_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
ANY_NAME = pytest.mark.skipif(
    sys.platform == "darwin", reason="macOS takes no names but UTF-8, and two Unicode forms for one name"
)
