from pathlib import Path

from dimred.io.run_names import full_checkpoint_beside, named_weights, snapshots_below


def test_a_snapshot_is_named_with_the_full_checkpoint_that_is_rather_meant(tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "checkpoint_stage_1"
    snapshots = checkpoints / "checkpoint_pca"
    snapshots.mkdir(parents=True)
    full = [checkpoints / f"net-{epoch}_74.ckpt" for epoch in (2, 10)]
    for path in (*full, snapshots / "net-10_12.ckpt"):
        path.touch()
    assert full_checkpoint_beside(snapshots / "net-10_12.ckpt") == str(full[1])
    assert full_checkpoint_beside(full[1]) == str(full[0])
    assert named_weights("--from", full[0]) == f"--from is {str(full[0])!r}, which"
    assert named_weights("WEIGHTS", snapshots / "net-10_12.ckpt") == (
        f"WEIGHTS is {str(snapshots / 'net-10_12.ckpt')!r}, a snapshot (trainable weights alone; a full checkpoint is "
        f"{full[1]}), which"
    )
    assert snapshots_below(tmp_path / "run") == f"; the snapshots of this run are in {str(snapshots)!r}"
    assert snapshots_below(checkpoints) == ""


def test_a_network_of_stage_2_is_named_as_such() -> None:
    path = Path("run") / "checkpoint_stage_2" / "net-1_74.ckpt"
    assert named_weights("WEIGHTS", path) == f"WEIGHTS is {str(path)!r}, a network of stage 2, which"
    assert full_checkpoint_beside(path) == "checkpoint_stage_1/NAME-EPOCH_STEP.ckpt of stage 1"
