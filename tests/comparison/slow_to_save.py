"""Prints ``ready``; takes a second to save when ctrl-C comes, and ends with status 130: ``slow_to_save.py FILE``."""

import sys
import time
from pathlib import Path

try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    Path(sys.argv[1]).write_text("saved")
    sys.exit(130)
