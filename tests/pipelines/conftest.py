"""One short real run of both stages, shared by the tests of the programs and by the processes that run them."""

import fcntl
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dimred.data import digits as written
from dimred.data.digits import write_digits
from tests.helpers.commands import DIGITS, SHORT, TwoStages, dimred, in_a_terminal, program

DIGITS_FOLDER = "digits with ü and blanks"


class Shared:
    """Let the first process that asks fill a folder under ``root``, which all of them read."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, name: str, fill: Callable[[Path], None]) -> Path:
        folder, filled = self._root / name, self._root / f"{name} is filled"
        with (self._root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not filled.exists():
                folder.mkdir()
                fill(folder)
                filled.touch()
        return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    root = tmp_path_factory.getbasetemp()
    return Shared(root.parent if root.name.startswith("popen-") else root)


@pytest.fixture(scope="session")
def digits(shared: Shared) -> Path:
    """Write the digits with two images of each scan to train on in place of four, and one to measure."""

    def fill(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(written, "SPLITS", {"train": (1197, 2), "val": (200, 1), "test": (400, 1)})
            write_digits(folder / DIGITS_FOLDER, seed=7)

    return shared("digits", fill) / DIGITS_FOLDER


@pytest.fixture(scope="session")
def few_digits(digits: Path, shared: Shared) -> Path:
    """Copy 200 images to train on, 50 to choose by, and 50 to test on."""

    def fill(few: Path) -> None:
        for split, count in (("train", 20), ("val", 5), ("test", 5)):
            for of_a_class in sorted((digits / split).iterdir()):
                (few / split / of_a_class.name).mkdir(parents=True)
                for image in sorted(of_a_class.iterdir())[:count]:
                    shutil.copy(image, few / split / of_a_class.name)

    return shared("few", fill)


@pytest.fixture(scope="session")
def two_stages(digits: Path, shared: Shared) -> TwoStages:
    def fill(folder: Path) -> None:
        run = TwoStages(folder, digits)
        done = program("stage_1", digits, "--config", DIGITS, "--out", run.stage_1, *SHORT, cwd=folder, status=0)
        (folder / "shown").write_text(done.stdout)
        dimred("pca", "--ckpt-dir", run.snapshots, "--out", run.matrix, cwd=folder, status=0)

    return TwoStages(shared("run", fill), digits)


@pytest.fixture(scope="session")
def searched(two_stages: TwoStages, shared: Shared) -> Path:
    """Run a search with alpha = 0, on the given matrix and in a terminal; what that showed lies beside the run."""

    def fill(out: Path) -> None:
        files = (two_stages.data, two_stages.weights, two_stages.matrix, "--config", DIGITS, "--out", out)
        command = (
            sys.executable,
            "-m",
            "dimred.pipelines.stage_2",
            *files,
            "--set=search.alpha=0",
            "--set=reestimate_batches=2",
        )
        # Without GLOG_v=3 MindSpore's C++ code warns about many things.
        shown = in_a_terminal(*command, "--set=tensorboard=true", cwd=two_stages.folder, GLOG_v="2")
        (out.parent / "shown of stage 2").write_text(shown)

    return shared("stage 2", fill)
