"""The files of each set of this folder are opened, gone on with, and refused by name once they are damaged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import read_state
from dimred.comparison.results import collect
from dimred.errors import DimredError
from dimred.io import file_format
from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import FileFormat
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.metadata import checksum_of
from tests.golden.make import NOT_READ_AGAIN, make
from tests.golden.metric import size
from tests.helpers.commands import dimred_here
from tests.helpers.modes import compile_nothing

SETS = sorted(Path(__file__).parent.glob("format_*"))
WEIGHTS = "stage_1/checkpoint_stage_1/network-2_4.ckpt"
SNAPSHOTS = "stage_1/checkpoint_stage_1/checkpoint_pca"
OWN = ["search.n_components=2", "epochs=1", "reestimate_batches=1"]


_pynative = pytest.fixture(autouse=True)(compile_nothing)


@pytest.fixture(params=SETS, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(request.param, tmp_path / "golden")


def resume_stage_1(golden: Path) -> None:
    stage_1(golden, out=golden / "stage_1_unfinished", resume=True)


def resume_search(golden: Path) -> None:
    stage_2(golden, golden / WEIGHTS, golden / "pca_mat.npy", out=golden / "search_unfinished", resume=True)


def resume_merge(golden: Path) -> None:
    out = golden / "merging.safetensors"
    dimred.merge(golden / "series", out, metric=size, minimize=True, resume=True)


def near(one: Path, other: Path) -> bool:
    """Return whether two networks are equal but for what another processor or MindSpore computes differently."""
    found, expected = read_checkpoint(one), read_checkpoint(other)
    assert found.keys() == expected.keys()
    return all(np.allclose(found[name], expected[name], rtol=1e-3, atol=1e-3) for name in expected)


def test_a_stage_1_that_died_goes_on_to_the_network_of_the_one_that_did_not(golden: Path) -> None:
    resume_stage_1(golden)
    found, expected = golden / WEIGHTS.replace("stage_1/", "stage_1_unfinished/", 1), golden / WEIGHTS
    assert near(found, expected)
    assert not near(found, expected.with_name("network-1_4.ckpt"))
    assert len(CheckpointSeries.open(found.parent / "checkpoint_pca")) == 4


@pytest.mark.parametrize("name", ["search", pytest.param("cooldown", marks=pytest.mark.slow)])
def test_a_stage_2_that_died_goes_on_and_is_reported(name: str, golden: Path) -> None:
    found, expected = golden / f"{name}_unfinished", golden / name
    stage_2(golden, golden / WEIGHTS, golden / "pca_mat.npy" if name == "search" else None, out=found, resume=True)
    final = "checkpoint_stage_2/network-final.ckpt"
    assert near(found / final, expected / final)
    result = StageTwoResult.read(found / "result.json")
    assert result.main.by_point.keys() == StageTwoResult.read(expected / "result.json").main.by_point.keys()
    page = dimred_here("report", found, "--grid", 3, "--batches", 1, status=0).stdout
    assert Path(page.split()[1]).is_file()


def test_a_new_search_begins_from_the_weights_and_the_matrix(golden: Path) -> None:
    stage_2(golden, golden / WEIGHTS, golden / "pca_mat.npy", overrides=OWN, out=golden / "new")
    assert StageTwoResult.read(golden / "new" / "result.json").steps == 4


def test_what_is_finished_is_read(golden: Path) -> None:
    """The sets were made elsewhere, so a report says that the sources of a stage 2 are gone."""
    expected = np.load(golden / "pca_mat.npy")
    for number, folder in enumerate((SNAPSHOTS, "series")):
        basis = fit_basis(golden / folder, 2, out=golden / f"{number}.npy")
        assert np.allclose(basis.components, expected, atol=1e-5)
    for run in ("stage_1", "search", "cooldown"):
        dimred_here("report", golden / run, status=0)
    [row] = collect(golden / "comparison")["rows"]
    assert row["method"] == "last"
    resume_merge(golden)
    assert (golden / "merging.safetensors").read_bytes() == (golden / "merged.safetensors").read_bytes()


@pytest.mark.slow
def test_the_newest_set_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.chdir(made)
    make(made)
    copied = shutil.copytree(made, tmp_path / "copied", ignore=NOT_READ_AGAIN)
    found, expected = ({str(path.relative_to(root)) for path in root.rglob("*")} for root in (copied, SETS[-1]))
    assert found == expected


Change = Callable[[Path], None]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x80
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def out_of_range(*keys: str | int, file_format: FileFormat) -> Change:
    """Return a change of a number to -1, in a file whose checksum is put right."""

    def change(path: Path) -> None:
        content = read_checksummed(path, file_format)
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = -1
        write_checksummed(path, file_format, content)

    return change


def from_the_future(file_format: FileFormat) -> Change:
    def change(path: Path) -> None:
        write_checksummed(path, newer(file_format), read_checksummed(path, file_format))

    return change


def newer(of: FileFormat) -> FileFormat:
    return of._replace(version=of.version + 1)


def in_text(old: str, new: str) -> Change:
    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def in_config(epochs: int, of: FileFormat) -> Change:
    def change(path: Path) -> None:
        *lines, _ = path.read_text().replace("epochs: 2\n", f"epochs: {epochs}\n").splitlines(keepends=True)
        path.write_text(of.sealed("".join(lines)))

    return change


def in_state(of: FileFormat) -> Change:
    def change(path: Path) -> None:
        state = read_state(path)
        write_checkpoint(path, state.arrays, {"dimred_values": json.dumps(of.marked(state.values))})

    return change


def in_metadata(of: FileFormat = file_format.BASIS, **about: float) -> Change:
    def change(path: Path) -> None:
        with h5py.File(path, "r+", locking=False) as file:
            content = file_format.BASIS.content_of(json.loads(file["about"][()])) | about
            del file["about"]
            file["about"] = np.bytes_(json.dumps(of.marked(content)))
        head, content_of_file = checksum_of(path), path.read_bytes()
        path.write_bytes(head + content_of_file[len(head) :])

    return change


def not_finite(path: Path) -> None:
    weights = read_checkpoint(path)
    next(iter(weights.values())).flat[0] = np.nan
    write_checkpoint(path, weights)


def not_finite_rows(path: Path) -> None:
    rows = np.load(path)
    rows[0, 0] = np.nan
    np.save(path, rows)


def report(run: str) -> Callable[[Path], object]:
    return lambda golden: refused_here(golden, "report", golden / run)


def pca(folder: str) -> Callable[[Path], object]:
    return lambda golden: refused_here(
        golden, "pca", "--ckpt-dir", golden / folder, "--n-components", 2, "--out", golden / "x.npy"
    )


def refused_here(golden: Path, *command: object) -> None:
    """Run a command that must end with one line about an error, and raise that."""
    done = dimred_here(*command, status=2)
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
    raise DimredError(last)


CONFIG, PINNED, STATE = file_format.CONFIGURATION, file_format.PINNED, file_format.STATE
SERIES, RESULT, ROW = file_format.SERIES, file_format.RESULT_OF_STAGE_2, file_format.COMPARED
MANIFEST, DIED = f"{SNAPSHOTS}/manifest.json", "stage_1_unfinished"
# A kill may cut these: what is left is gone on with, and a report says what is missing.
MAY_BE_CUT = {"search/metrics.jsonl", "stage_1/metrics.jsonl", "merging.safetensors.merge/scores.jsonl"}
# File, how it is opened, and the changes beside a flipped byte and a cut file.
DAMAGES: dict[str, tuple[Callable[[Path], object], list[Change]]] = {
    MANIFEST: (pca(SNAPSHOTS), [out_of_range("entries", 0, "epoch", file_format=SERIES), from_the_future(SERIES)]),
    f"{SNAPSHOTS}/network-2_2.ckpt": (pca(SNAPSHOTS), [not_finite]),
    "series/weights-2_6.safetensors": (pca("series"), [not_finite]),
    "pca_mat.npy": (lambda golden: load_basis(golden / "pca_mat.npy"), [not_finite_rows]),
    "pca_mat.h5": (
        lambda golden: load_basis(golden / "pca_mat.npy"),
        [in_metadata(deviation=-1.0), in_metadata(newer(file_format.BASIS))],
    ),
    WEIGHTS: (
        lambda golden: stage_2(golden, golden / WEIGHTS, golden / "pca_mat.npy", overrides=OWN, out=golden / "new"),
        [],
    ),
    f"{DIED}/config.yaml": (
        resume_stage_1,
        [in_text("epochs: 2", "epochs: 3"), in_config(-2, CONFIG), in_config(2, newer(CONFIG))],
    ),
    f"{DIED}/pins.json": (resume_stage_1, [from_the_future(PINNED)]),
    "search_unfinished/metrics.jsonl": (resume_search, [in_text('"step": 2', '"step": 7')]),
    f"{DIED}/resume/state-4.ckpt": (resume_stage_1, [in_state(newer(STATE))]),
    "search/result.json": (report("search"), [in_text('"epochs": 2', '"epochs": -2'), from_the_future(RESULT)]),
    "search/metrics.jsonl": (report("search"), [in_text('"step": 2', '"step": -2')]),
    "stage_1/metrics.jsonl": (report("stage_1"), [in_text('"epoch": 2', '"epoch": -2')]),
    "merging.safetensors.merge/scores.jsonl": (resume_merge, [in_text('"version": 1', '"version": 2')]),
    "comparison/seed_3/at_2/last.json": (lambda golden: collect(golden / "comparison"), [from_the_future(ROW)]),
}


def damages() -> list[object]:
    damages = []
    for name, (_, changes) in DAMAGES.items():
        named = {"flipped": flip, "cut": cut} | {f"change {n}": change for n, change in enumerate(changes, start=1)}
        if name in MAY_BE_CUT:
            del named["cut"]
        damages += [pytest.param(name, change, id=f"{name}, {how}") for how, change in named.items()]
    return damages


@pytest.mark.parametrize(("name", "change"), damages())
def test_a_damaged_file_is_refused_by_name(name: str, change: Change, tmp_path: Path) -> None:
    """A number out of range has a checksum that was put right, and a later version one of its own."""
    golden = shutil.copytree(SETS[-1], tmp_path / "golden")
    if "resume/" in name:  # without it, the state before would be taken
        (golden / name).with_name("state-2.ckpt").unlink()
    change(golden / name)
    with pytest.raises(DimredError) as refused:
        DAMAGES[name][0](golden)
    assert Path(name).name in str(refused.value)
