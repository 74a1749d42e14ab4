"""What ``dimred train`` would run, by ``--dry-run``, where devices are not given."""

from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY, dimred_here


@pytest.mark.parametrize(
    ("options", "ranks", "target", "words"),
    [
        ((), 1, "CPU", "device: CPU, 1 rank (MindSpore sees no Ascend device here; "),
        (("--devices", 2), 2, "CPU", "device: CPU, 2 ranks (MindSpore sees no Ascend device here; "),
        (("--device-target", "CPU"), 1, "CPU", "device: CPU, 1 rank (--device-target and --devices choose otherwise)"),
        (("--device-target", "Ascend"), 8, "Ascend", "device: Ascend, 8 ranks (MindSpore sees no Ascend device here"),
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
