"""The environment of a process whose Python lacks what macOS lacks, by ``sitecustomize.py`` beside this file."""

import os
from pathlib import Path

LIKE_MAC = {
    "LIKE_MAC": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[3])]),
}
