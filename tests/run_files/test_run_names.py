from pathlib import Path

import pytest

from dimred.cli.measure import network_of_run, run_of
from dimred.errors import ConfigError
from dimred.run_files.run_names import named_weights, snapshots_below, without_dots


def test_a_run_is_found_from_what_is_in_it_and_its_last_network_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()  # of something else
    stage_1, stage_2 = tmp_path / "device0_stage_1", tmp_path / "device0_stage_2"
    files = [
        stage_1 / "checkpoint_stage_1" / "net-2_74.ckpt",
        stage_1 / "checkpoint_stage_1" / "net-10_74.ckpt",
        stage_1 / "checkpoint_stage_1" / "checkpoint_pca" / "net-10_12.ckpt",
        stage_2 / "checkpoint_stage_2" / "net-start.ckpt",
    ]
    for path in (*files, stage_1 / "config.yaml", stage_2 / "config.yaml"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [run_of(path) for path in files] == [stage_1, stage_1, stage_1, stage_2]
    assert [run_of(path) for path in (stage_1, stage_1 / "checkpoint_stage_1", stage_2)] == [stage_1, stage_1, stage_2]
    assert run_of(stage_1 / "checkpoint_stage_1" / "checkpoint_pca" / ".." / "net-2_74.ckpt") == stage_1
    assert run_of(tmp_path) is run_of(tmp_path / "average.ckpt") is None
    assert network_of_run(stage_1) == files[1]  # epoch 10, not the last one of the alphabet
    with pytest.raises(ConfigError, match=r"device0_stage_2', which is a run that has not saved the network it ends"):
        network_of_run(stage_2)
    for folder in (tmp_path, stage_1 / "checkpoint_stage_1" / "checkpoint_pca"):
        with pytest.raises(ConfigError, match=r"which is not the folder of a run; give a checkpoint or a finished run"):
            network_of_run(folder)
    for run, name in ((stage_2, "checkpoint_stage_2"), (stage_1, "checkpoint_stage_1")):
        (run / name / "net-final.ckpt").touch()
        assert network_of_run(run) == run / name / "net-final.ckpt"


def test_a_message_about_weights_says_what_they_are() -> None:
    full, run = "a full checkpoint is checkpoint_stage_1/NAME-EPOCH_STEPS.ckpt),", Path("run")
    for path, kind in (
        (run / "checkpoint_stage_1" / "net-2_74.ckpt", ""),
        (
            run / "checkpoint_stage_1" / "checkpoint_pca" / "net-2_12.ckpt",
            f", a snapshot (trainable weights alone; {full}",
        ),
        (run / "checkpoint_stage_2" / "net-1_74.ckpt", ", a network of stage 2,"),
        (run / "resume" / "state-5.ckpt", f", a state for --resume ({full}"),
    ):
        assert named_weights("--from", path) == f"--from {str(path)!r}{kind}"


def test_the_snapshots_of_a_run_are_found_below_its_folder(tmp_path: Path) -> None:
    snapshots = tmp_path / "run" / "checkpoint_stage_1" / "checkpoint_pca"
    snapshots.mkdir(parents=True)
    assert snapshots_below(tmp_path / "run") == snapshots
    assert snapshots_below(snapshots.parent) is None


def test_dots_are_those_of_the_file_system_and_other_links_stay(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")
    assert without_dots(tmp_path / "link" / "a") == tmp_path / "link" / "a"
    assert without_dots(tmp_path / "link" / ".." / "a") == tmp_path / "disk" / "a"
    assert without_dots(tmp_path / "link" / "..") == tmp_path / "disk"
    assert without_dots(tmp_path / "disk" / ".." / "link") == tmp_path / "link"
