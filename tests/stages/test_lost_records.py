"""A run whose records were lost goes on if that is allowed, except for a search, which needs them."""

import shutil
from pathlib import Path

import pytest

from dimred.config import StageOneConfig
from dimred.errors import ConfigError, RunError
from dimred.io.metrics_file import read_metrics
from dimred.io.run_names import METRICS
from dimred.subspace.fit import fit_basis
from tests.helpers.finished_stage_1 import STAGE_1, settings
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a stage 1 of three epochs, whose last state follows the records of two."""
    out = tmp_path_factory.mktemp("whole") / "one"
    stage_1_run(of_epochs(3))(out, False)
    return out


def of_epochs(epochs: int) -> StageOneConfig:
    return StageOneConfig.model_validate(TASK | STAGE_1 | {"epochs": epochs})


def cut(file: Path, how: str) -> None:
    """Remove the file, cut it within its second record, or make its second record longer."""
    if how == "removed":
        file.unlink()
    elif how == "edited":
        first, second, *rest = file.read_bytes().split(b"\n")
        file.write_bytes(b"\n".join([first, second + b"       ", *rest]))
    else:
        content = file.read_bytes()
        file.write_bytes(content[: content.index(b"\n") + 20])


@pytest.mark.parametrize(("how", "kept"), [("removed", []), ("cut", [1]), ("edited", [1])])
def test_stage_1_goes_on_without_lost_records_if_that_is_allowed(
    how: str, kept: list[int], whole: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(whole, tmp_path / "one")
    cut(out / METRICS, how)
    before = results(out)
    with pytest.raises(ConfigError, match=rf"  metrics\.jsonl: .* bytes.* -> .*(.|\n)*--allow-change {METRICS}"):
        stage_1_run(of_epochs(4))(out, True)
    assert not differences(results(out), before)
    stage_1_run(of_epochs(4), [METRICS])(out, True)
    assert [record["epoch"] for record in read_metrics(out / METRICS)] == [*kept, 3, 4]
    assert (out / "checkpoint_stage_1" / "network-4_4.ckpt").exists()
    stage_1_run(of_epochs(4))(out, True)  # nothing is lost any more


def test_a_search_does_not_go_on_without_the_records_of_its_steps(checkpoints: Path, tmp_path: Path) -> None:
    basis = fit_basis(checkpoints / "checkpoint_pca", 1, out=tmp_path / "pca_mat.npy")
    search = stage_2_run(
        settings(method="search", search={"n_components": 1}), checkpoints / "network-2_4.ckpt", basis.path, [METRICS]
    )
    search(tmp_path / "two", False)
    cut(tmp_path / "two" / METRICS, "cut")
    before = results(tmp_path / "two")
    with pytest.raises(
        RunError, match="was cut or changed after the run wrote it, and a search makes its totals from all"
    ):
        search(tmp_path / "two", True)
    assert not differences(results(tmp_path / "two"), before)
