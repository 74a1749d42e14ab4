"""The folder of a run, and what may change when it is resumed."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from dimred.config import StageOneConfig
from dimred.errors import ConfigError, RunError
from dimred.io.atomic import open_atomic
from dimred.runs.run_folder import begun_with, check_run_folder, refuse_changes, run_folder, say_new_run, write_versions

BEFORE = {"epochs": 3, "data": {"batch_size": 20, "mean": [1.0, 2.0]}, "limit": None}


def fail_in(folder: Path, how: str) -> None:
    with run_folder(folder) as out:
        if how == "after a result":
            (out / "result").write_text("kept")
        elif how == "without the folder":
            shutil.rmtree(out)
        raise OSError("the disk is gone")


@pytest.mark.parametrize("how", ["before a result", "after a result", "without the folder"])
def test_a_run_that_wrote_nothing_leaves_nothing_and_its_folder_never_hides_the_reason(
    how: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        fail_in(tmp_path / "a" / "b", how)
    assert (tmp_path / "a" / "b").exists() == (how == "after a result")


def test_a_run_that_is_refused_removes_nothing_of_the_one_that_is_at_work(tmp_path: Path) -> None:
    with open_atomic(tmp_path / "elsewhere") as file:
        of_this_host = Path(file.name).name
    unfinished = tmp_path / "run" / re.sub(r"-\d+-", "-4194399-", of_this_host)  # of a process that is not seen here
    with run_folder(tmp_path / "run"):
        unfinished.touch()
        with pytest.raises(RunError, match="is at work"), run_folder(tmp_path / "run"):
            pass
        assert unfinished.exists()
    with run_folder(tmp_path / "run"):
        assert not unfinished.exists()


def test_earlier_results_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, said in ((tmp_path, "earlier results"), (tmp_path / "file", "not a folder; name another one")):
        with pytest.raises(ConfigError, match=said):
            check_run_folder(folder, resume=False)
    with pytest.raises(ConfigError, match="something other than a run"):
        check_run_folder(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="can't be made"), run_folder(tmp_path / "file" / "below"):
        pass


def test_every_difference_is_shown_with_the_way_to_accept_it() -> None:
    now = {"epochs": 4, "data": {"batch_size": 20, "mean": [1.0, 3.0]}, "limit": None}
    with pytest.raises(ConfigError) as refused:
        refuse_changes(BEFORE, now, [])
    for words in ("epochs: 3 -> 4", "data.mean: [1.0, 2.0] -> [1.0, 3.0]", "--allow-change epochs --allow-change d"):
        assert words in str(refused.value)
    for key, where in (("epochs", " 'a b/config.yaml'"), ("DATA", "")):
        with pytest.raises(
            ConfigError, match=f"begun with{where and ', which are in --config'}{where}, or accept the new"
        ):
            refuse_changes({key: 1}, {key: 2}, [], Path("a b/config.yaml"))
    with pytest.raises(ConfigError) as refused:
        refuse_changes(BEFORE, now, ["epochs"])
    assert "epochs" not in str(refused.value)
    refuse_changes(BEFORE, now, ["epochs", "data"])  # a whole section


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        ({"a": None}, {"a": {"b": 1}}, "a"),
        ({"a": {}}, {"a": {"b": 1}}, "a"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": None}}, "a.c"),
        ({"a": [1]}, {"a": [1, 2]}, "a"),
        ({"a": 1}, {"a": True}, "a"),
    ],
)
def test_a_difference_of_any_shape_is_refused_in_both_directions(one: dict, other: dict, key: str) -> None:
    for before, now in ((one, other), (other, one)):
        with pytest.raises(ConfigError, match=rf"(?m)^  {key}: .* -> .*$"):
            refuse_changes(before, now, [])
        refuse_changes(before, now, [key])


def test_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--allow-change has an unknown key 'epoch'; did you mean 'epochs'"):
        refuse_changes(BEFORE, BEFORE, ["epoch"])


def test_keys_that_the_version_which_began_the_run_lacked_count_as_unset(caplog: pytest.LogCaptureFixture) -> None:
    """An upgrade between a kill and --resume must not end a run; but a new key that is set is a change."""
    now = StageOneConfig(stop={"name": "averaged"}).model_dump(mode="json") | {"--devices": 1}
    before = json.loads(json.dumps(now))
    for section, key in (("data", "damaged"), ("stop", "patience"), ("precision", "hf32")):
        del before[section][key]
    del before["accumulation"], before["ema"]
    before["read_every_steps"] = 3  # which changes nothing of what is computed
    refuse_changes(begun_with(before, StageOneConfig), begun_with(now, StageOneConfig), [])
    assert "count as unset: data.damaged 'stop', " in caplog.text
    for word in ("stop.patience 3", "precision.hf32 null", "accumulation 1", "ema.decay null"):
        assert word in caplog.text
    assert "read_every_steps" not in caplog.text
    now["accumulation"], now["ema"]["decay"] = 2, 0.9
    with pytest.raises(ConfigError, match=r"(?s)  accumulation: 1 -> 2\n.*  ema.decay: null -> 0.9\n"):
        refuse_changes(begun_with(before, StageOneConfig), begun_with(now, StageOneConfig), [])


def test_a_key_that_this_version_lacks_is_a_change() -> None:
    stored = StageOneConfig().model_dump(mode="json")
    now = begun_with(stored, StageOneConfig)
    before = begun_with(stored | {"data": stored["data"] | {"shuffle": "none"}}, StageOneConfig)
    with pytest.raises(ConfigError, match=r"data\.shuffle: 'none' -> absent"):
        refuse_changes(before, now, [])
    refuse_changes(before, now, ["data.shuffle"])


@pytest.mark.parametrize(
    ("files", "is_lost"),
    [
        (
            [
                "checkpoint_stage_1/checkpoint_pca/net-1_3.ckpt",
                "checkpoint_stage_1/net-1_9.ckpt",
                "metrics.jsonl",
                "config.yaml",
            ],
            False,
        ),
        (["checkpoint_stage_1/checkpoint_pca/net-7_3.ckpt", "checkpoint_stage_1/checkpoint_pca/net-7_6.ckpt"], False),
        (["checkpoint_stage_1/checkpoint_pca/net-1_3.ckpt", "checkpoint_stage_1/checkpoint_pca/net-2_3.ckpt"], True),
        (["checkpoint_stage_1/net-2_9.ckpt"], True),
        (["checkpoint_stage_2/net-start.ckpt", "checkpoint_stage_2/net-average.ckpt"], False),
        (["checkpoint_stage_2/net-1_9.ckpt"], True),
    ],
)
def test_a_run_killed_before_its_first_state_begins_anew_and_a_later_one_does_not(
    files: list[str], is_lost: bool, tmp_path: Path
) -> None:
    """The former may have what it wrote in its first epoch, which after ``--from`` has a larger number."""
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(RunError, match="tells of a run") if is_lost else nullcontext():
        say_new_run(tmp_path)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({}, []),
        ({"mindspore": "2.0.1", "processors": "0"}, ["mindspore 2.0.1 -> 2.", ", processors 0 -> "]),
        ("damaged", []),
    ],
)
def test_versions_that_changed_before_a_run_goes_on_are_said(
    stored: dict[str, str] | str, said: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_versions(tmp_path)
    assert not caplog.messages
    file = tmp_path / "versions.json"
    now = json.loads(file.read_text())
    file.write_text(stored if isinstance(stored, str) else json.dumps(now | stored))
    write_versions(tmp_path)
    assert json.loads(file.read_text()) == now
    assert len(caplog.messages) == bool(said)
    assert all(words in caplog.text for words in said)
