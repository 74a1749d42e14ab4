"""A resumed run goes on with the configuration in its folder, and only where what it depends on is the same."""

from pathlib import Path

import pytest

from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, config_text, load_config
from dimred.errors import ConfigError, RunError
from dimred.runs.begun import Begun, Pin, write_pins
from tests.helpers.run_files import write_config

PINS = {"devices": Pin("1"), "DATA/train": Pin("9 samples, digest ab", "/data"), "WEIGHTS": Pin("cd", "/one/net.ckpt")}


def begun(out: Path, *settings: str, stage: type[StageConfig] = StageOneConfig) -> Path:
    """Write the folder of a run that has begun with these settings."""
    out.mkdir()
    write_config(out, config_text(load_config(stage, None, settings)))
    write_pins(out, PINS)
    return out


def test_where_no_run_has_begun_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as where one was killed before its first state."""
    caplog.set_level("INFO")
    (tmp_path / "config.yaml").write_text("seed: 2")
    assert Begun.open(tmp_path, StageOneConfig) is None
    assert f"--resume: no run has begun in {tmp_path}; a new one begins" in caplog.messages


def test_a_run_goes_on_with_its_own_configuration_and_the_free_keys_that_are_given(tmp_path: Path) -> None:
    out = begun(tmp_path / "one", "seed=3", "epochs=5", "data.batch_size=20", "stop=averaged")
    own = load_config(StageOneConfig, out / "config.yaml")
    assert Begun.open(out, StageOneConfig) == Begun(own, PINS)
    given = tmp_path / "given.yaml"
    given.write_text(config_text(own.model_copy(update={"epochs": 7, "stop": None})))
    found = Begun.open(out, StageOneConfig, given, ["checkpoints.every_epochs=2"])
    changes = {"epochs": 7, "stop": None, "checkpoints": own.checkpoints.model_copy(update={"every_epochs": 2})}
    assert found.config == own.model_copy(update=changes)


def test_all_else_that_is_given_and_differs_is_refused_in_one_message(tmp_path: Path) -> None:
    out = begun(tmp_path / "one", "seed=3", "data.batch_size=20", "epochs=5")
    given = ["seed=4", "data.batch_size=21", "data.resize=false", "clipping.norm=2", "profile.first_step=3", "epochs=6"]
    with pytest.raises(ConfigError) as refused:
        Begun.open(out, StageOneConfig, None, given)
    _, *lines, remedy = str(refused.value).splitlines()
    expected = ["seed: 3 -> 4", "data.batch_size: 20 -> 21", "data.resize: true -> false", "clipping.norm: null -> 2.0"]
    assert [line.strip() for line in lines] == expected
    assert "leave these out; or begin a new run with another --out, perhaps from one of its checkpoints with" in remedy


@pytest.mark.parametrize(
    ("own", "is_free"),
    [
        (["search.rule=bfgs"], True),
        (["search.rule=sgd", "search.learning_rate_schedule=linear"], False),
        (["method=cooldown"], False),
    ],
)
def test_the_epochs_of_a_stage_2_are_free_unless_its_rates_are_made_for_them(
    own: list[str], is_free: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rate would go up again. A fraction that is given has become a number when the run began."""
    out = begun(tmp_path / "two", "epochs=2", *own, stage=StageTwoConfig)
    assert Begun.open(out, StageTwoConfig, None, ["epochs=10%"]).config.epochs == 2
    assert caplog.messages == ["--resume: epochs stays 2, not 10%; give a number to change it"]
    if is_free:
        assert Begun.open(out, StageTwoConfig, None, ["epochs=3"]).config.epochs == 3
    else:
        with pytest.raises(ConfigError, match=r"(?m)^  epochs: 2 -> 3$"):
            Begun.open(out, StageTwoConfig, None, ["epochs=3"])


def test_other_contents_of_what_a_run_depends_on_are_refused_in_one_message_wherever_they_are(tmp_path: Path) -> None:
    run = Begun.open(begun(tmp_path / "one"), StageOneConfig)
    moved = {name: Pin(pin.digest, "/elsewhere") for name, pin in PINS.items()}
    run.check(moved)
    run.check(moved | {"DATA/val": Pin("3 samples, digest ef")})  # an early stop that is new reads it
    with pytest.raises(ConfigError) as refused:
        run.check({"devices": Pin("2"), "WEIGHTS": Pin("ef"), "PCA_MAT": Pin("12", "/pca_mat.npy")})
    expected = ["devices: 1 -> 2", "WEIGHTS: cd (/one/net.ckpt) -> ef", "PCA_MAT: none -> 12 (/pca_mat.npy)"]
    assert [line.strip() for line in str(refused.value).splitlines()[1:4]] == expected


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut", r"pins\.json can't be used"),
        ("edited", "checksum does not match"),
    ],
)
def test_pins_that_are_damaged_are_refused(how: str, said: str, tmp_path: Path) -> None:
    file = begun(tmp_path / "one") / "pins.json"
    file.write_bytes(file.read_bytes()[:-9] if how == "cut" else file.read_bytes().replace(b'"cd"', b'"ce"'))
    with pytest.raises(RunError, match=said):
        Begun.open(tmp_path / "one", StageOneConfig)
