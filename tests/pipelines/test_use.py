"""The page about using a network works as it stands: a run made elsewhere is finished, exported, tuned and logged."""

import csv
import re
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.runs.listeners import numbers
from tests.helpers.commands import ON_PATH, REPOSITORY, run
from tests.pipelines.test_tutorial import run_commands, write_files

USE = (REPOSITORY / "pipelines" / "USE.md").read_text(encoding="utf-8")
FILES = [
    "my_task.py",
    "elsewhere.py",
    "finish.yaml",
    "predict.py",
    "export.py",
    "my_metric.py",
    "tune.yaml",
    "my_log.py",
]
NAMES = {f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the page's commands, and return the folder and what they printed."""
    folder = tmp_path_factory.mktemp("use")
    assert write_files(USE, folder) == FILES
    return folder, run_commands(USE, folder).stdout


@pytest.mark.slow
def test_a_run_made_elsewhere_is_averaged_or_cooled_down(used: tuple[Path, str]) -> None:
    folder, printed = used
    of_average, of_cooldown = re.findall(r"^accuracy on 'test': (\d+\.\d+) %;", printed, re.MULTILINE)
    assert min(float(of_average), float(of_cooldown)) > 85
    assert (folder / "averaged.ckpt").exists()
    with (folder / "predictions.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 297
    n_right = sum(line["label"] == line["prediction"] for line in lines)
    as_trained = 100 * n_right / len(lines)
    assert f"{as_trained:.2f}" == of_cooldown


@pytest.mark.slow
def test_it_is_loaded_and_exported(used: tuple[Path, str]) -> None:
    folder, printed = used
    [accuracy] = re.findall(r"^accuracy: (0\.\d{4})$", printed, re.MULTILINE)
    of_cooldown = re.findall(r"^accuracy on 'test': (\d+\.\d+) %;", printed, re.MULTILINE)[1]
    assert float(accuracy) == pytest.approx(float(of_cooldown) / 100, abs=1e-4)
    assert "\nMindIR: True\n" in printed
    with safe_open(folder / "digits.safetensors", "numpy") as network:
        assert network.metadata() == {"format": "pt"}
        assert set(network.keys()) == {"0.weight", *NAMES, "4.weight", "4.bias"}
    assert (folder / "digits.onnx").stat().st_size > 20_000


@pytest.mark.slow
def test_onnxruntime_gives_the_same_logits(used: tuple[Path, str]) -> None:
    pytest.importorskip("onnxruntime")
    code = """
import onnxruntime
from predict import images, net, np
session = onnxruntime.InferenceSession("digits.onnx")
[logits] = session.run(None, {"images": images.asnumpy()})
print(abs(logits - net(images).asnumpy()).max())
"""
    done = run(sys.executable, "-c", code, cwd=used[0], environment=ON_PATH, status=0)
    assert float(done.stdout.splitlines()[-1]) < 1e-5


@pytest.mark.slow
def test_it_is_tuned_to_other_classes_and_measured_by_a_metric_of_the_whole_split(used: tuple[Path, str]) -> None:
    _, printed = used
    assert "5 of 7 parameters begin with its values, the others are new" in printed
    [f1] = re.findall(r"^\{'f1': (0\.\d+)\}$", printed, re.MULTILINE)
    assert float(f1) > 0.85
    assert f"\nf1 on 'test': {float(f1):.4g}; " in printed
    assert printed.rstrip().endswith(" (over the whole split, so without a standard error)")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["mlflow", "wandb", "swanlab"])
def test_a_run_is_logged(used: tuple[Path, str], package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    folder, _ = used
    [command] = re.findall(r"^```sh\n(.*?)^```", USE, re.MULTILINE | re.DOTALL)
    command = command.replace("to_mlflow", f"to_{package}").replace("--out logged", f"--out {tmp_path}")
    modes = {"WANDB_MODE": "offline", "SWANLAB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/log.db"}
    done = run("bash", "-e", "-c", command, cwd=folder, environment=ON_PATH | modes, status=0)
    assert "gets no more records" not in done.stdout + done.stderr
    if package == "mlflow":
        code = (
            "import mlflow; [run] = mlflow.search_runs(output_format='list'); print(run.data.metrics, run.info.status)"
        )
        told = run(sys.executable, "-c", code, cwd=tmp_path, environment=modes, status=0).stdout
        assert "'metrics/f1/as_trained': 0." in told
        assert "FINISHED" in told


def test_the_numbers_of_a_record_have_names() -> None:
    record = {"step": 3, "ended": True, "stop": "no", "metrics": {"f1": {"as_trained": 0.5, "ema": None}}}
    assert dict(numbers(record)) == {"step": 3, "metrics/f1/as_trained": 0.5}


def test_its_configurations_are_valid_and_its_programs_compile(tmp_path: Path) -> None:
    assert write_files(USE, tmp_path) == FILES
    finish = load_config(StageTwoConfig, tmp_path / "finish.yaml", [])
    tune = load_config(StageOneConfig, tmp_path / "tune.yaml", ["callback=my_log:to_mlflow"])
    assert (finish.method, finish.cooldown.rate, tune.metric) == ("cooldown", 0.05, "my_metric:f1")
    for program in tmp_path.glob("*.py"):
        compile(program.read_text(), program.name, "exec")
