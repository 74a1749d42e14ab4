"""Ask a GPU whether it computes what the CPU does, and how fast: python -m tests.gpu.card FOLDER [--minutes 6]

FOLDER/card.jsonl gets a line for each answer before the next question is asked, so that a card that is taken away
leaves what it has said. The CPU is asked at the same time, in a process of its own. A part that ends its process is
noted, and the others go on. The exit status is 1 if an answer is wrong or missing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.errors import ConfigError
from dimred.launch.devices import DEVICES
from dimred.launch.nvidia import ask_driver, driver_release
from tests.gpu.runs import RUNS, empty

_ROUNDING = 1e-5  # of sums of some hundred float32 numbers, as a fraction of the largest result
_TEN_STEPS = 1e-3  # rounding, which ten steps carry on
_HALF = 0.1  # rounding to 11 bits, which ten steps carry on
# Percentage points with re-estimated statistics. "As trained", at a constant rate, the same run gave 57.65 on one
# processor, 69.17 to 71.50 on another and 45.30 on an H200, so those figures are noted and not compared.
_POINTS = 3.0


class Part(NamedTuple):
    """A part of ``parts.py``, and how far its arrays may be from the CPU's, as a fraction of the CPU's largest number.

    Attributes:
        tolerance: that fraction; None if the CPU is not asked.
        expected: values that single results must have, by name.
        at_most: bounds of arrays by name, which are not compared with the CPU's.
    """

    tolerance: float | None
    expected: Mapping[str, float] = {}
    at_most: Mapping[str, float] = {}


RIGHT = {
    "products": Part(_ROUNDING),
    "bare_step": Part(_TEN_STEPS),
    "train_step": Part(_TEN_STEPS),
    "forms": Part(_TEN_STEPS),
    "half_precision": Part(_HALF),
    "overflow": Part(None, {"changed parameters": 0.0, "applied": 0.0}),
    "dropout": Part(None, {"is finite": 1.0}),
    "search": Part(_TEN_STEPS),
    "search_forms": Part(_TEN_STEPS),
    "twin": Part(_TEN_STEPS, at_most={"difference of weights": 1e-4}),
    "vectors": Part(_ROUNDING),
    "moved_values": Part(_TEN_STEPS),
    "statistics": Part(_ROUNDING),
    "products_tf32": Part(1e-2),  # rounding to 10 bits
}
FAST = {"sink": Part(None), "speed": Part(None), "search_speed": Part(None), "speed_float32": Part(None)}


class Card:
    """The questions to a card, and its answers in a folder.

    Args:
        folder: the folder, made if missing.
        minutes: time for all questions; a question that would begin later is left out, and noted.
        is_small: whether the device's times mean nothing.
        device: GPU, or CPU to try this program itself.

    Attributes:
        wrong: what was wrong or missing.
    """

    def __init__(self, folder: Path, minutes: float = 6.0, *, is_small: bool = False, device: str = "GPU"):
        self._folder, self._end, self._small = folder.absolute(), time.monotonic() + 60 * minutes, is_small
        self._device = device
        self.wrong: list[str] = []
        self._folder.mkdir(parents=True, exist_ok=True)

    def ask(self, only: Sequence[str] = ()) -> None:
        """Ask everything, or only the questions with these names.

        Raises:
            ConfigError: the device can't be used here.
        """
        DEVICES[self._device].check(f"--device is {self._device}", "give --device CPU")
        driver = ask_driver()
        cards = [gpu._asdict() for gpu in driver.gpus] if driver is not None else []
        self._note(cards=cards, driver=driver_release(), cores=os.cpu_count())
        right = [name for name in RIGHT if not only or name in only]
        self._ask_right(right)
        for name in (name for name in RUNS if not only or name in only):
            self._ask_run(name)
        for name in (name for name in FAST if not only or name in only):
            self._ask_parts(self._device, [name])
            self._note_part(name, FAST[name])
        if not only or "torch" in only:
            self._ask_torch()

    def _note(self, **answer: Any) -> None:
        with (self._folder / "card.jsonl").open("a") as file:
            file.write(json.dumps(answer) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(json.dumps(answer)[:600], flush=True)

    def _is_wrong(self, question: str, what: str) -> None:
        self.wrong.append(f"{question}: {what}")
        self._note(question=question, wrong=what)

    def _seconds_left(self) -> float:
        return self._end - time.monotonic()

    def _ask_right(self, names: Sequence[str]) -> None:
        """Ask the device and the CPU at the same time; the results of both are then on the disk."""
        compared = [name for name in names if RIGHT[name].tolerance is not None]
        reference = self._start("CPU", compared, self._folder / "cpu") if compared else None
        self._ask_parts(self._device, names)
        if reference is not None:
            try:
                reference.wait(max(1.0, self._seconds_left()))
            except subprocess.TimeoutExpired:
                reference.kill()
        for name in names:
            self._note_part(name, RIGHT[name])

    def _start(self, device: str, names: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        """Start a process that runs parts on a device; what it prints is in FOLDER/DEVICE.log."""
        small = ["--small"] if self._small else []
        command = [sys.executable, "-m", "tests.gpu.on_device", device, str(folder), *names, *small]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{device}.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _ask_parts(self, device: str, names: Sequence[str]) -> None:
        """Run parts in one process, and in another one those that stand behind a part that ended the process."""
        folder, left = self._folder / "device", list(names)
        while left and self._seconds_left() > 0:
            process = self._start(device, left, folder)
            try:
                process.wait(max(1.0, self._seconds_left()))
            except subprocess.TimeoutExpired:
                process.kill()
            left = [name for name in left if not _has_answer(folder, name)][1:]

    def _note_part(self, name: str, part: Part) -> None:
        """Note the numbers of a part, and its differences to the CPU's."""
        folder = self._folder / "device"
        text = folder / f"{name}.txt"
        if text.exists():
            self._is_wrong(name, text.read_text()[-1500:])
            return
        if not (folder / f"{name}.npz").exists():
            self._is_wrong(name, f"no answer; {_end_of(folder / f'{self._device}.log')}")
            return
        ours = _read(folder / f"{name}.npz")
        numbers = {key: values.tolist() for key, values in ours.items() if values.size < 20}
        self._note(question=name, numbers=numbers)
        for key, value in part.expected.items():
            if float(ours[key]) != value:
                self._is_wrong(name, f"{key} is {float(ours[key])}, not {value}")
        for key, bound in part.at_most.items():
            if not (largest := float(ours[key].max())) <= bound:
                self._is_wrong(name, f"{key} is {largest:.2g}, more than {bound:g}")
        if part.tolerance is not None:
            compared = {key: values for key, values in ours.items() if key not in part.at_most}
            self._compare(name, part.tolerance, compared, self._folder / "cpu" / f"{name}.npz")

    def _compare(self, name: str, tolerance: float, ours: Mapping[str, np.ndarray], file: Path) -> None:
        if not file.exists():
            self._is_wrong(name, f"the CPU gave no answer; {_end_of(file.with_name('CPU.log'))}")
            return
        theirs = _read(file)
        for key in ours:
            expected = theirs[key]
            largest = float(np.abs(expected).max()) or 1.0
            difference = float(np.abs(ours[key].astype("f8") - expected).max()) / largest
            self._note(question=name, of=key, difference=difference, largest=largest)
            if not difference <= tolerance:
                self._is_wrong(name, f"{key} differs from the CPU's by {difference:.2g}, more than {tolerance:g}")

    def _ask_run(self, name: str) -> None:
        """Run a command line's run on the device and, where its numbers are compared, at the same time on the CPU."""
        if self._seconds_left() < 0:
            self._is_wrong(name, "no time was left")
            return
        folders = {"device": empty(self._folder / f"{name}_device"), "cpu": empty(self._folder / f"{name}_cpu")}
        devices = {"device": self._device} | ({"cpu": "CPU"} if name == "quick_start" else {})
        processes = {who: self._start_run(name, device, folders[who]) for who, device in devices.items()}
        found = {}
        for who, process in processes.items():
            try:
                said, _ = process.communicate(timeout=max(1.0, self._seconds_left()))
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
            if process.returncode:
                self._is_wrong(name, f"on {devices[who]}: {said[-1500:]}")
            else:
                found[who] = json.loads(said.splitlines()[-1])
        self._note(question=name, **found)
        if name == "killed_and_resumed" and "device" in found and not found["device"]["equal bytes"]:
            self._is_wrong(name, f"the resumed run differs by {found['device']['difference']:.2g}")
        if len(found) == len(devices) == 2:
            for key, expected in found["cpu"].items():
                difference = abs(found["device"][key] - expected)
                if key.endswith("re-estimated") and not self._small and not difference <= _POINTS:
                    self._is_wrong(name, f"{key} is {found['device'][key]} %, and {expected} % on the CPU")

    def _start_run(self, name: str, device: str, folder: Path) -> subprocess.Popen[str]:
        code = f"""
import json
from pathlib import Path
from tests.gpu.runs import RUNS
print(json.dumps(RUNS[{name!r}]({device!r}, Path({str(folder)!r}), is_small={self._small})))
"""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def _ask_torch(self) -> None:
        """Let PyTorch train the same network, by the machine's own ``python3``, where it is installed."""
        program = Path(__file__).with_name("torch_speed.py")
        small = ["--small"] if self._small else []
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            command, limit = ["python3", str(program), *small], max(1.0, self._seconds_left())
            done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=limit, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            self._note(question="torch", left_out=str(error))
        else:
            self._note(question="torch", said=(done.stdout + done.stderr)[-400:])


def _has_answer(folder: Path, name: str) -> bool:
    return any((folder / f"{name}{ending}").exists() for ending in (".npz", ".txt"))


def _read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:] if log.exists() else "it left no log"


def _questions() -> Iterator[str]:
    yield from (*RIGHT, *RUNS, *FAST, "torch")


def main() -> None:
    """Ask as the command line says."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--minutes", type=float, default=6.0)
    options.add_argument("--only", nargs="+", default=[], choices=list(_questions()))
    options.add_argument("--small", action="store_true", help="for a device whose times mean nothing")
    options.add_argument("--device", default="GPU", choices=("GPU", "CPU"), help="CPU tries this program itself")
    given = options.parse_args()
    card = Card(given.folder, given.minutes, is_small=given.small, device=given.device)
    try:
        card.ask(given.only)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    print(*card.wrong, sep="\n")
    sys.exit(bool(card.wrong))


if __name__ == "__main__":
    main()
