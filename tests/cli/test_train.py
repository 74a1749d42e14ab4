"""What ``dimred train`` would run where devices are not given, and what it says of arguments in a wrong place."""

from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY, dimred_here


@pytest.mark.parametrize(
    ("options", "ranks", "target", "words"),
    [
        ((), 1, "CPU", "device: CPU, 1 rank (no Ascend device; "),
        (("--devices", 2), 2, "CPU", "device: CPU, 2 ranks (no Ascend device; "),
        (("--device-target", "CPU"), 1, "CPU", "device: CPU, 1 rank (--device-target and --devices change this)"),
        (("--device-target", "Ascend"), 8, "Ascend", "device: Ascend, 8 ranks (no Ascend device; "),
        (("--device-target", "Ascend", "--devices", 2), 2, "Ascend", None),
        (("--rank-table", REPOSITORY / "rank_tables" / "rank_table_8pcs.json"), 8, "Ascend", None),
    ],
)
def test_devices_are_found_and_explicit_values_win(
    options: tuple[object, ...], ranks: int, target: str, words: str | None, tmp_path: Path
) -> None:
    command = ("train", "stage-1", ".", "--config", "digits", "--dry-run", *options)
    process = dimred_here(*command, cwd=tmp_path, status=0)
    assert f"node 0 of 1: ranks 0 to {ranks - 1} of {ranks}\n" in process.stdout
    assert process.stdout.count(f"--device-target {target} ") == ranks
    first = process.stderr.splitlines()[:1]
    assert not first if words is None else first[0].startswith(words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("stage-2", "net-2_5.ckpt", "data"),
            "WEIGHTS is 'data', which is a folder; give a full checkpoint, checkpoint_stage_1/NAME-EPOCH",
        ),
        (
            ("stage-2", "data", "pca_mat.npy", "net-2_5.ckpt"),
            "WEIGHTS is 'pca_mat.npy', a basis; give a full checkpoint first, then",
        ),
        (("stage-2", "data", "resume/state-9.ckpt"), "a state for --resume (a full checkpoint is checkpoint_stage_1/"),
        (("stage-1", "data", "net-2_5.ckpt"), "WEIGHTS is 'net-2_5.ckpt', but stage-1 takes DATA alone; leave it out"),
        (
            ("stage-2", "data", "net-2_5.ckpt", "--from", "a.ckpt"),
            "--from is 'a.ckpt', but stage-2 begins with WEIGHTS",
        ),
        (("stage-1", "data", "--from", "resume"), "--from is 'resume', which is a folder; give a full checkpoint, "),
        (("stage-1", "data", "--from", "no.ckpt"), "--from is 'no.ckpt', which does not exist"),
        (("stage-1", "data", "--set", "epochs", "3"), "--set is 'epochs'; expected key=value, such as epochs=2 or "),
    ],
)
def test_an_argument_in_a_wrong_place_is_named(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    for folder in ("data", "resume", "checkpoint_stage_1"):
        (tmp_path / folder).mkdir()
    for file in ("net-2_5.ckpt", "pca_mat.npy", "resume/state-9.ckpt", "checkpoint_stage_1/net-2_5.ckpt"):
        (tmp_path / file).touch()
    assert said in dimred_here("train", *arguments, cwd=tmp_path, status=2).stderr
