"""A named pipe, a device, a socket or a folder where a file is to be read: it is named, and never waited for."""

import ast
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.config import StageOneConfig
from dimred.data.image_folder import ImageFolder
from dimred.errors import DataError, RunError
from dimred.io.file_format import CONFIGURATION
from dimred.io.regular_file import NotRegularError, check_regular, open_regular, read_regular
from dimred.runs.begun import Begun
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import dimred_here
from tests.helpers.planted import as_weights, random_walk, write_series
from tests.helpers.run_files import write_run
from tests.helpers.tiny_task import TASK
from tests.test_packages import FILES, ROOT, parsed

pytestmark = pytest.mark.timeout(60)  # where one waits for a pipe, it waits for ever


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_link", [False, True])
def test_what_is_no_file_is_named(kind: str, by_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket may have 100 signs or so
    path = Path("one.safetensors")
    KINDS[kind](path)
    if by_link:
        Path("link").symlink_to(path)
        path = Path("link")
    before = len(list(Path("/dev/fd").iterdir()))
    for read in (check_regular, open_regular, read_regular):
        with pytest.raises(NotRegularError) as refused:
            read(path)
        assert str(refused.value) == refused.value.strerror == f"it is {kind}, not a file"
        assert refused.value.filename == str(path)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_what_takes_the_place_of_a_file_while_it_is_opened_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "one")
    monkeypatch.setattr("dimred.io.regular_file.check_regular", lambda path: None)
    with pytest.raises(NotRegularError, match="it is a named pipe"):
        open_regular(tmp_path / "one")


def test_a_file_is_read_and_a_link_that_leads_nowhere_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"12")
    (tmp_path / "link").symlink_to("one")
    assert read_regular(tmp_path / "link") == b"12"
    with open_regular(str(tmp_path / "one")) as file:
        assert file.name == str(tmp_path / "one")
        assert os.get_blocking(file.fileno())
    (tmp_path / "one").unlink()
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "link")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what the commands below read."""
    folder = tmp_path_factory.mktemp("made")
    rows = random_walk(4, 300)
    series = write_series(folder / "series", rows)
    fit_basis(series, 2, out=folder / "pca_mat.npy")
    (folder / "other").mkdir()
    for step, row in enumerate(rows):
        write_checkpoint(folder / "other" / f"epoch_{step}.safetensors", as_weights(row))
    (folder / "one.yaml").write_text(yaml.safe_dump(TASK))
    (folder / "metric.py").write_text("def score(tensors):\n    return 1.0\n")
    write_run(folder / "run", 3, 2, 2)
    return folder


ONE_RANK = ("--devices", "1", "--device-target", "CPU")
CALLS = [
    ("other/epoch_3.safetensors", "merge other --out m.safetensors"),
    ("other/epoch_3.safetensors", "merge other/epoch_1.safetensors other/epoch_3.safetensors --out m.safetensors"),
    ("rest.ckpt", "merge other --rest rest.ckpt --out m.safetensors"),
    ("names.json", "merge other --names-from names.json --out m.safetensors"),
    ("metric.py", "merge other --metric metric.py:score --minimize --out m.safetensors"),
    ("series/manifest.json", "merge series --out m.safetensors"),
    ("series/net-2_2.ckpt", "merge series --out m.safetensors"),
    ("series/manifest.json", "pca --ckpt-dir series --n-components 2 --out p.npy"),
    ("series/net-2_2.ckpt", "pca --ckpt-dir series --n-components 2 --out p.npy"),
    ("pca_mat.h5", "pca --ckpt-dir series --n-components 2 --names-from pca_mat.npy --out p.npy"),
    ("pca_mat.npy", "show pca_mat.npy"),
    ("pca_mat.h5", "show pca_mat.npy"),
    ("one.ckpt", "show pca_mat.npy --checkpoint one.ckpt"),
    ("two.yaml", "train stage-1 . --config two.yaml --devices 1 --device-target CPU"),
    ("table.json", "train stage-1 . --config one.yaml --rank-table table.json --dry-run"),
    ("table.json", "rank-table check table.json"),
    ("one.ckpt", "train stage-2 . one.ckpt --config one.yaml --devices 1 --device-target CPU"),
    ("one.ckpt", "eval . one.ckpt --config one.yaml"),
    ("two.yaml", "eval . series/net-2_2.ckpt --config two.yaml"),
    ("two.yaml", "bench . --config two.yaml"),
    ("run/stage_2/config.yaml", "report run/stage_2"),
    ("run/stage_2/metrics.jsonl", "report run/stage_2"),
    ("run/stage_1/checkpoint_stage_1/checkpoint_pca/manifest.json", "report run/stage_1"),
]


@pytest.mark.parametrize(("path", "call"), CALLS)
def test_a_command_names_the_pipe_in_one_line(path: str, call: str, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    shutil.copytree(made, folder)
    before = {one.name for one in folder.iterdir()}
    (folder / path).unlink(missing_ok=True)
    os.mkfifo(folder / path)
    done = dimred_here(*call.split(), cwd=folder, status=2)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert Path(path).name in line
    assert "it is a named pipe, not a file" in line
    assert {one.name for one in folder.iterdir()} == before | {Path(path).parts[0]}


@pytest.mark.parametrize("kind", ["a socket", "a device"])
def test_a_checkpoint_that_is_no_file_is_named(
    kind: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "other", "other")
    KINDS[kind](Path("other", "epoch_4.safetensors"))
    merged = dimred_here("merge", "other", "--out", "m.safetensors", status=2)
    assert f"epoch_4.safetensors can't be read: it is {kind}, not a file" in merged.stderr


@pytest.mark.parametrize("kind", ["a socket", "a device", "a folder"])
def test_a_configuration_that_is_no_file_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    KINDS[kind](Path("two.yaml"))
    trained = dimred_here("train", "stage-1", ".", "--config", "two.yaml", *ONE_RANK, status=2)
    assert f"--config is 'two.yaml', which can't be read (it is {kind}, not a file)" in trained.stderr


def test_a_resumed_run_names_the_pipe_in_place_of_its_pins(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIGURATION.sealed("{}"))
    os.mkfifo(tmp_path / "pins.json")
    with pytest.raises(RunError, match="it is a named pipe, not a file"):
        Begun.open(tmp_path, StageOneConfig)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((8, 8, 3), 40 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.png")
    return tmp_path


def folder_of(images: Path) -> ImageFolder:
    return ImageFolder(images / "train", image_size=8, mean=[0] * 3, std=[1] * 3, batch_size=2)


def test_a_pipe_among_the_images_is_named_before_training(images: Path) -> None:
    os.mkfifo(images / "train" / "b" / "9.png")
    with pytest.raises(DataError, match=r"the image '.*/b/9\.png' can't be read \(it is a named pipe, not a file\)"):
        folder_of(images)


def test_pipes_that_are_no_images_are_passed_over(images: Path) -> None:
    """A hidden one, one with another name, and one in the place of a class."""
    for name in ("a/.9.png", "a/words.txt", "c"):
        os.mkfifo(images / "train" / name)
    assert folder_of(images).n_images == 6


def test_data_check_lists_what_is_no_file(images: Path) -> None:
    os.mkfifo(images / "train" / "a" / "9.png")
    (images / "train" / "b" / "8.png").symlink_to("/dev/zero")
    done = dimred_here("data", "check", images, "--workers", 1, status=1)
    assert done.stdout.splitlines() == [
        str(images / "train/a/9.png"),
        str(images / "train/b/8.png"),
        "6 colour, 2 no file",
    ]


# Calls in dimred that open a file for reading, as they are written; ``open`` with a mode that only writes is left out.
READERS = {
    "Image.open",
    "ds.Cifar100Dataset",
    "ds.Cifar10Dataset",
    "ds.ImageFolderDataset",
    "ds.MnistDataset",
    "gzip.open",
    "h5py.File",
    "importlib.util.spec_from_file_location",
    "np.fromfile",
    "np.genfromtxt",
    "np.lib.format.open_memmap",
    "np.load",
    "np.loadtxt",
    "np.memmap",
    "open",
    "os.open",
    "safe_open",
    "tarfile.open",
    "torch.load",
}
ELSEWHERE = {
    "dimred/checkpoints/safetensors_format.py": {"safe_open(path": "open_checkpoint has opened it"},
    "dimred/console.py": {"os.open(os.devnull": "of the kernel"},
    "dimred/data/image_folder.py": {"ds.ImageFolderDataset(": "read_image_tree has checked each image"},
    "dimred/data/image_tree.py": {"Image.open(content)": "open_regular has opened it"},
    "dimred/io/atomic.py": {
        "os.open(path, os.O_RDONLY)": "flushes what this process has written",
        "os.open(path, os.O_NOFOLLOW": "only locks it",
        "os.open(self.": "a lock, opened to write",
        "temporary.open('r+b')": "this process has made it",
    },
    "dimred/io/regular_file.py": {"open(path, 'rb', opener=_open)": "the rule", "os.open(path, flags": "the rule"},
    "dimred/io/system.py": {"_BOOT_ID.read_bytes()": "of the kernel"},
    "dimred/io/tied.py": {"os.open(os.devnull": "of the kernel"},
    "dimred/launch/nvidia.py": {"_KERNEL_VERSION.read_text(": "of the kernel"},
    "dimred/launch/processes.py": {"os.open(os.devnull": "of the kernel"},
    "dimred/merging/convert.py": {"torch.load(path": "open_regular has opened it"},
    "dimred/merging/output.py": {
        "safe_open(path": "open_checkpoint has opened it",
        "tensor.file.open('r+b')": "a candidate that the merge has written",
    },
    "dimred/merging/user_metric.py": {"importlib.util.spec_from_file_location(": "check_regular comes before"},
    "dimred/models/products.py": {"file.read_bytes()": "MindSpore has written it for this process"},
    "dimred/report/page.py": {"files('dimred.report')": "of dimred's own installation"},
    "dimred/subspace/basis.py": {"np.lib.format.open_memmap(path": "check_regular comes before"},
    "dimred/subspace/fit.py": {"np.memmap(mean": "an unnamed file of this process"},
    "dimred/subspace/metadata.py": {
        "h5py.File(path, 'r'": "open_regular has opened it",
        "np.memmap(path": "open_regular has opened it",
    },
    "dimred/workarounds/cuda_backend.py": {"maps.read_text(": "of the kernel"},
    "dimred/workarounds/onednn_cap.py": {"Path('/proc/cpuinfo')": "of the kernel"},
}
"""Where a call that begins like this opens a file for reading, and why it can't wait for another process."""


def readings(tree: ast.AST) -> list[str]:
    """List the calls in a file that open another one for reading, as they are written."""
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call) and opens_to_read(node)]


def opens_to_read(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    method = function.rpartition(".")[2]
    texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    modes = [text for text in texts if {*text} <= {*"rwaxbt+"}]
    if any({*mode} & {*"wax"} for mode in modes):
        return False
    if method == "read_bytes":
        return not call.args  # StoredTensor.read_bytes reads an open file
    if method == "open":
        return function in READERS or bool(modes) or not call.args  # CheckpointSeries.open takes a path
    return method == "read_text" or function in READERS


def test_dimred_opens_files_for_reading_in_one_place() -> None:
    known = {(file, beginning) for file, calls in ELSEWHERE.items() for beginning in calls}
    found = {(str(path.relative_to(ROOT)), call) for path in FILES for call in readings(parsed(path))}
    reasons = {one: {key for key in known if key[0] == one[0] and one[1].startswith(key[1])} for one in found}
    assert [one for one, keys in reasons.items() if not keys] == []
    assert known == set().union(*reasons.values())


@pytest.mark.parametrize(
    ("code", "is_reading"),
    [
        ("path.open()", True),
        ("path.open('r+b')", True),
        ("path.open(encoding='utf-8')", True),
        ("path.read_text()", True),
        ("path.read_bytes()", True),
        ("np.load(path)", True),
        ("path.open('ab')", False),
        ("path.open('x+b')", False),
        ("Checkpoint.open(path)", False),
        ("tensor.read_bytes(file, 0, out)", False),
    ],
)
def test_what_counts_as_opening_for_reading(code: str, is_reading: bool) -> None:
    assert bool(readings(ast.parse(code))) is is_reading
