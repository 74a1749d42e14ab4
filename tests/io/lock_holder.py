"""Holds the lock of a folder until it is killed: ``python lock_holder.py FOLDER``."""

import sys
import time
from pathlib import Path

from dimred.io.atomic import FolderLock

with FolderLock(Path(sys.argv[1]), "FOLDER"):
    print("held", flush=True)
    time.sleep(60)
