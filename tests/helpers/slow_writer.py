"""Begins to write a file and waits to be killed: ``python slow_writer.py FILE``."""

import sys
import time

from dimred.io.atomic import open_atomic

with open_atomic(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
