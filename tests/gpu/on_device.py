"""Run parts in this process: python -m tests.gpu.on_device DEVICE FOLDER PART...

Each part's arrays are in FOLDER/PART.npz before the next part begins; an error's text is in FOLDER/PART.txt.
"""

import argparse
import os
import traceback
from pathlib import Path

import numpy as np

from dimred.launch.devices import make_ready


def main() -> None:
    """Make the device ready, and run the parts one after another."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("device", choices=("GPU", "CPU"))
    options.add_argument("folder", type=Path)
    options.add_argument("parts", nargs="+")
    options.add_argument("--small", action="store_true", help="for a device whose times mean nothing")
    options.add_argument("--pynative", action="store_true", help="in PyNative instead of graph mode")
    given = options.parse_args()
    os.environ.setdefault("GLOG_v", "3")
    make_ready(given.device)
    import mindspore as ms

    from dimred.runs.device import set_up
    from tests.gpu.parts import PARTS, Setting

    set_up(1, given.device)
    if given.pynative:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.parts:
        try:
            arrays = PARTS[name](Setting(given.device, given.small, given.folder))
        except Exception:
            (given.folder / f"{name}.txt").write_text(traceback.format_exc())
        else:
            np.savez(given.folder / f"{name}.npz", **arrays)
            print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()
