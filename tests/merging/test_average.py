"""Averages end to end: the output has the inputs' layout, and loads where they came from."""

import json
import resource
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.errors import CheckpointError, ConfigError, DimredError, FaultError
from tests.helpers.checkpoint_files import (
    BITS,
    INDEX,
    as_float,
    draw,
    in_type,
    metadata_of,
    read_file,
    write_file,
    write_run,
    write_shards,
)
from tests.helpers.commands import dimred_here as command
from tests.merging.problems import METRICS
from tests.oracles import merge as oracle

MEANS = ("conv.weight", "bn.running_mean", "bn.running_var", "fc.weight")


def expected(arrays: list[dict[str, np.ndarray]], coefficients: list[float], dtype: type) -> dict[str, np.ndarray]:
    means = {name: oracle.weighted_mean([as_float(one[name]) for one in arrays], coefficients) for name in MEANS}
    types = {name: np.float32 if name == "bn.running_var" else dtype for name in MEANS}
    return arrays[-1] | {name: in_type(mean, types[name]) for name, mean in means.items()}


def assert_same(result: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    assert result.keys() == reference.keys()
    for name, value in reference.items():
        np.testing.assert_array_equal(result[name], value, err_msg=name, strict=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BITS])
def test_a_file_in_a_file_out(tmp_path: Path, dtype: type) -> None:
    arrays = write_run(tmp_path / "run", 4, dtype)
    out = tmp_path / "avg.safetensors"
    dimred.merge(tmp_path / "run", out, last=3, profile="linear")
    assert_same(read_file(out), expected(arrays[1:], [1, 2, 3], dtype))
    assert metadata_of(out) == {"format": "pt"}
    source = tmp_path / "run" / "checkpoint-4000" / "model.safetensors"
    size = 8 + int.from_bytes(source.read_bytes()[:8], "little")
    assert json.loads(out.read_bytes()[8:size]) == json.loads(source.read_bytes()[8:size])


def test_shards_in_shards_out_with_what_a_framework_needs(tmp_path: Path) -> None:
    arrays = write_run(tmp_path / "run", 3, BITS, sharded=True)
    for name in ("qwen.tiktoken", "modeling_own.py", "optimizer.pt"):
        (tmp_path / "run" / "checkpoint-3000" / name).touch()
    out = tmp_path / "avg"
    dimred.merge([tmp_path / "run"], out, from_step=2000)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
        "modeling_own.py",
        "qwen.tiktoken",
    ]
    assert (out / INDEX).read_bytes() == (tmp_path / "run" / "checkpoint-3000" / INDEX).read_bytes()
    parts = [read_file(path) for path in sorted(out.glob("*.safetensors"))]
    assert [sorted(part) for part in parts] == [
        ["bn.running_mean", "bn.running_var", "conv.weight"],
        ["bn.num_batches_tracked", "fc.weight"],
    ]
    assert_same(parts[0] | parts[1], expected(arrays[1:], [1, 1], BITS))


@pytest.mark.parametrize("sharded", [False, True])
def test_the_output_can_have_another_type(tmp_path: Path, sharded: bool) -> None:
    arrays = write_run(tmp_path / "run", 2, BITS, sharded=sharded)
    out = tmp_path / "avg"
    dimred.merge(tmp_path / "run", out, dtype="float32")
    result = {name: value for path in out.glob("*.safetensors") for name, value in load_file(path).items()}
    assert_same(result, expected(arrays, [1, 1], np.float32))
    if sharded:
        sizes = sum(value.nbytes for value in result.values())
        assert json.loads((out / INDEX).read_text())["metadata"] == {"total_size": sizes}


@pytest.mark.slow
def test_large_shards_are_not_taken_into_memory(tmp_path: Path) -> None:
    for number in (1, 2):
        shards = [{f"w.{part}": np.full((4_000, 4_000), number, np.float32)} for part in range(2)]
        write_shards(tmp_path / "run" / f"checkpoint-{number}", shards)
    tracemalloc.start()
    dimred.merge(tmp_path / "run", tmp_path / "avg", dtype="float16")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24_000_000  # a tensor that is written has 32 MB


def test_digests_of_an_input_are_not_those_of_the_result(tmp_path: Path) -> None:
    """Trainers of image models write a digest of the weights into the metadata; a name may have "hash", too."""
    true = {"modelspec.title": "a face", "hash_table.weight": "embed.weight"}
    digests = {"modelspec.hash_sha256": "0x" + 32 * "aF", "sshs_model_hash": 64 * "0", "sshs_legacy_hash": "1f2e3d4c"}
    for seed in (1, 2):
        write_file(tmp_path / f"n-{seed}.safetensors", {"embed.weight": draw((3, 2), BITS, seed)}, true | digests)
    dimred.merge(str(tmp_path / "n-*.safetensors"), tmp_path / "avg.safetensors")
    assert metadata_of(tmp_path / "avg.safetensors") == true


def test_tensors_that_are_tied_stay_tied(tmp_path: Path) -> None:
    """The library's save_model writes one of two shared tensors, and the other's name into the metadata."""
    texts = {"format": "pt", "lm_head.weight": "embed.weight"}
    for seed in (1, 2):
        write_file(tmp_path / "run" / f"n-{seed}.safetensors", {"embed.weight": draw((3, 2), BITS, seed)}, texts)
    dimred.merge(tmp_path / "run", tmp_path / "avg.safetensors")
    assert metadata_of(tmp_path / "avg.safetensors") == texts
    assert list(read_file(tmp_path / "avg.safetensors")) == ["embed.weight"]


def test_the_record_says_what_it_was_made_from(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    record = dimred.merge(tmp_path / "run", tmp_path / "avg.safetensors", profile="0.5,0.25,0.25")
    assert json.loads((tmp_path / "avg.safetensors.json").read_text()) == record
    assert [one["coefficient"] for one in record["checkpoints"]] == [0.5, 0.25, 0.25]
    assert [one["step"] for one in record["checkpoints"]] == [1000, 2000, 3000]
    assert len({tuple(one["sample_sha256"]) for one in record["checkpoints"]}) == 3
    assert record["batch_norm"].startswith(
        "2 statistics are averages, which do not belong to these weights: re-estimate them"
    )
    assert {"dimred", "numpy", "safetensors", "python"} <= record["versions"].keys()


@pytest.mark.parametrize("sharded", [False, True])
def test_coefficients_belong_to_the_checkpoints_as_they_are_named(
    tmp_path: Path, sharded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And those of one folder or glob to the order that is shown, the oldest first."""
    run = tmp_path / "run"
    arrays = write_run(run, 3, sharded=sharded)
    names = {number: run / f"checkpoint-{number}000" for number in (1, 2, 3)}

    def coefficients(sources: object, profile: str, **options: object) -> dict[str, float]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        record = dimred.merge(sources, out if sharded else out.with_suffix(".safetensors"), profile=profile, **options)
        return {Path(one["path"]).name: one["coefficient"] for one in record["checkpoints"]}

    expected = {"checkpoint-1000": 0.2, "checkpoint-2000": 0.1, "checkpoint-3000": 0.7}
    assert coefficients([names[3], names[1], names[2]], "0.7,0.2,0.1") == expected
    assert caplog.messages[-1] == (
        f"the checkpoints' coefficients, oldest first:\n  0.2  {names[1]}\n  0.1  {names[2]}\n  0.7  {names[3]}"
    )
    if not sharded:
        mean = oracle.weighted_mean([one["fc.weight"] for one in arrays], [0.2, 0.1, 0.7])
        np.testing.assert_allclose(read_file(next(tmp_path.glob("*.safetensors")))["fc.weight"], mean, rtol=1e-6)
    assert coefficients(run, "0.2,0.1,0.7") == coefficients(f"{run}/*", "0.2,0.1,0.7") == expected
    assert coefficients([names[3], names[1], names[2]], "0.7,0.3", from_step=1500) == {
        "checkpoint-2000": 0.3,
        "checkpoint-3000": 0.7,
    }
    assert coefficients([names[3], names[1], names[2]], "linear") == pytest.approx(
        {"checkpoint-1000": 1 / 6, "checkpoint-2000": 2 / 6, "checkpoint-3000": 3 / 6}
    )
    with pytest.raises(
        ConfigError, match=r"\[12\]\*' stands for 2 of them, and is not the only argument; name each checkpoint"
    ):
        coefficients([names[3], f"{run}/*-[12]*"], "0.7,0.2,0.1")


@pytest.mark.parametrize(
    ("out", "options", "words"),
    [
        ("run", {}, "exists already; name another"),
        ("/", {}, "exists already; name another"),
        ("mine.safetensors", {}, "mine.safetensors.json' exists already"),
        ("gone/avg.safetensors", {}, "in a folder that does not exist"),
        ("avg.ckpt", {}, "its name must end in .safetensors, for checkpoints in .safetensors"),
        ("avg.safetensors", {}, "the checkpoints are in several files; name a folder"),
        ("avg.safetensors", {"dtype": "int8"}, "dtype is 'int8'; allowed: float64, float32"),
        ("avg.safetensors", {"profile": "bell"}, "profile is 'bell'"),
        ("avg.safetensors", {"profile": ""}, "profile is ''"),
        ("avg.safetensors", {"from_step": 5000}, "whose steps are 1000 to 2000"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, out: str, options: dict[str, object], words: str) -> None:
    write_run(tmp_path / "run", 2, sharded="several files" in words)
    (tmp_path / "mine.safetensors.json").touch()
    with pytest.raises(DimredError) as error:
        dimred.merge(tmp_path / "run", tmp_path / out, **options)  # type: ignore[arg-type]
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_disk_without_room_leaves_nothing(tmp_path: Path, sharded: bool) -> None:
    write_run(tmp_path / "run", 2, sharded=sharded)
    out = tmp_path / ("avg" if sharded else "avg.safetensors")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # the kernel's own "too large"
        with pytest.raises(FaultError, match=r"can't be written \(.*File too large"):
            dimred.merge(tmp_path / "run", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def interrupted(tmp_path: Path, out: str, number: signal.Signals, after: str = "posix_fallocate") -> int:
    """Return the exit status of a merge that gets a signal after it has called a function of ``os``."""
    write_run(tmp_path / "run", 2)
    program = [sys.executable, Path(__file__).with_name("merge_and_die.py"), str(int(number)), after]
    return subprocess.run([*program, tmp_path / "run", tmp_path / out], check=False, stderr=subprocess.PIPE).returncode


@pytest.mark.parametrize(("out", "number"), [("avg.safetensors", signal.SIGINT), ("avg", signal.SIGTERM)])
def test_a_signal_leaves_nothing(tmp_path: Path, out: str, number: signal.Signals) -> None:
    assert interrupted(tmp_path, out, number) == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("after", ["posix_fallocate", "replace"])
@pytest.mark.parametrize("out", ["avg.safetensors", "avg"])
def test_a_merge_that_was_killed_can_be_made_again(tmp_path: Path, out: str, after: str) -> None:
    """It is killed while the network is written, or between its record and itself."""
    assert interrupted(tmp_path, out, signal.SIGKILL, after) == -signal.SIGKILL
    assert len(list(tmp_path.glob(f"{out}.merge/candidate*"))) == 1
    assert (tmp_path / f"{out}.json").exists() == (after == "replace")
    dimred.merge(tmp_path / "run", tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [out, f"{out}.json", "run"]


def test_the_other_entries_may_come_from_another_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    weights = [{"w": draw((4, 3), np.float32, seed)} for seed in (1, 2)]
    for number, arrays in enumerate(weights, start=1):
        write_checkpoint(tmp_path / "run" / f"n-{number}_1.ckpt", arrays)
    whole = {"bn.moving_mean": draw((3,), np.float32, 5), "w": draw((4, 3), np.float32, 6)}
    write_checkpoint(tmp_path / "whole.ckpt", whole, {"epoch": 7})
    arguments = ["merge", tmp_path / "run", "--rest", tmp_path / "whole.ckpt", "--out", tmp_path / "avg.ckpt"]
    process = command(*arguments, "--profile", "exponential=0.25")
    worth = f"BatchNorm: 1 statistics are copies from {tmp_path / 'whole.ckpt'}, which do not belong to these weights: "
    assert worth in process.stdout, process.stderr
    result = read_checkpoint(tmp_path / "avg.ckpt")
    assert list(result) == ["bn.moving_mean", "w", "epoch"]
    np.testing.assert_array_equal(result["bn.moving_mean"], whole["bn.moving_mean"])
    mean = oracle.weighted_mean([one["w"] for one in weights], [0.25, 0.75])
    np.testing.assert_array_equal(result["w"], mean.astype(np.float32))
    score = lambda tensors: float(tensors["bn.moving_mean"][0])  # noqa: E731
    options = {"metric": score, "minimize": True, "rest": tmp_path / "whole.ckpt"}
    assert dimred.merge(tmp_path / "run", tmp_path / "best.ckpt", **options)["all_else_from"] == str(options["rest"])
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "best.ckpt")["bn.moving_mean"], whole["bn.moving_mean"])
    write_checkpoint(tmp_path / "other.ckpt", {"w": draw((4, 4), np.float32, 6)})
    with pytest.raises(ConfigError, match=r"which does not fit the checkpoints: its parameter 'w' has shape \(4, 4\)"):
        dimred.merge(tmp_path / "run", tmp_path / "x.ckpt", rest=tmp_path / "other.ckpt")
    write_checkpoint(tmp_path / "quantised.ckpt", {"w": np.ones((4, 3), np.int8)})
    with pytest.raises(ConfigError, match="parameter 'w' has the type int8, not a float type"):
        dimred.merge(tmp_path / "run", tmp_path / "x.ckpt", rest=tmp_path / "quantised.ckpt")


def test_statistics_as_flax_and_keras_name_them_are_not_weights(tmp_path: Path) -> None:
    names = ("batch_stats.bn.mean", "batch_stats/bn/var", "bn/moving_variance")
    for number in (1, 2):
        tensors = {name: draw((3,), np.float32, number) for name in (*names, "params.dense.mean")}
        write_file(tmp_path / "run" / f"n-{number}.safetensors", tensors)
    record = dimred.merge(tmp_path / "run", tmp_path / "avg.safetensors")
    assert record["batch_norm"].startswith("3 statistics are averages")


def constants(dtype: type) -> dict[str, np.ndarray]:
    """Make buffers that are not finite, as an attention mask's, and a table of integers."""
    mask = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    bits = (mask.view(np.uint32) >> 16).astype(BITS)
    return {"mask": bits if dtype is BITS else mask.astype(dtype), "ids": np.arange(8).reshape(2, 4)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BITS])
def test_what_is_equal_in_all_checkpoints_is_copied_and_so_are_vectors_of_integers(tmp_path: Path, dtype: type) -> None:
    seeds = [np.array([number, 7]) for number in range(3)]  # of a generator
    arrays = [{"w": draw((9,), dtype, number), "seed": seeds[number], **constants(dtype)} for number in range(3)]
    for number, tensors in enumerate(arrays):
        write_file(tmp_path / "run" / f"n-{number}.safetensors", tensors)
    dimred.merge(tmp_path / "run", tmp_path / "mean.safetensors", profile="linear")
    result = read_file(tmp_path / "mean.safetensors")
    for name, value in constants(dtype).items():
        np.testing.assert_array_equal(result[name], value, strict=True)
    np.testing.assert_array_equal(result["seed"], seeds[-1], strict=True)
    mean = oracle.weighted_mean([as_float(one["w"]) for one in arrays], [1, 2, 3])
    np.testing.assert_array_equal(result["w"], in_type(mean, dtype))
    dimred.merge(tmp_path / "run", tmp_path / "half.safetensors", dtype="float16")
    np.testing.assert_array_equal(read_file(tmp_path / "half.safetensors")["mask"], constants(np.float16)["mask"])


@pytest.mark.parametrize("dtype", [np.int8, np.bool_])
@pytest.mark.parametrize("options", [{}, {"metric": lambda path: 1.0, "minimize": True}], ids=["average", "search"])
def test_quantised_weights_are_refused(tmp_path: Path, dtype: type, options: dict) -> None:
    for number in range(3):
        integers = np.random.default_rng(number).integers(0, 2, (4, 3)).astype(dtype)
        scale = draw((4,), np.float32, number)
        write_file(tmp_path / "run" / f"n-{number}.safetensors", {"fc.quantised": integers, "fc.scale": scale})
    with pytest.raises(CheckpointError, match=r"'fc\.quantised' has the type (int8|bool) and differs between"):
        dimred.merge(tmp_path / "run", tmp_path / "out.safetensors", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_input_that_cannot_be_read_is_not_taken_for_the_output(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2)
    companion = tmp_path / "run" / "checkpoint-2000" / "tokenizer.json"
    companion.symlink_to("/proc/self/mem")  # a read of its first byte is an I/O error
    with pytest.raises(CheckpointError) as error:
        dimred.merge(tmp_path / "run", tmp_path / "mean")
    assert str(error.value) == f"{companion} can't be read: Input/output error."
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_mindspores_checkpoints_keep_their_texts_and_counters(tmp_path: Path) -> None:
    mindspore = pytest.importorskip("mindspore")
    (tmp_path / "run").mkdir()
    tensors_in = [
        {"w": draw((300, 7), np.float32, seed), "bn.moving_mean": draw((5,), np.float32, seed)} for seed in (1, 2)
    ]
    for epoch, arrays in enumerate(tensors_in, start=1):
        write_checkpoint(tmp_path / "run" / f"net-{epoch}_10.ckpt", arrays, {"epoch": epoch, "note": f"end of {epoch}"})
    out = tmp_path / "avg.ckpt"
    dimred.merge(tmp_path / "run", out)
    result = read_checkpoint(out)  # compares its checksum too
    assert result["epoch"].item() == 2
    assert result["note"].item() == "end of 2"
    for name in ("w", "bn.moving_mean"):
        mean = oracle.weighted_mean([one[name] for one in tensors_in], [1, 1]).astype(np.float32)
        np.testing.assert_array_equal(result[name], mean)
        np.testing.assert_array_equal(mindspore.load_checkpoint(str(out))[name].asnumpy(), mean)
    other = tmp_path / "avg.safetensors"
    dimred.merge(tmp_path / "run", other)
    np.testing.assert_array_equal(read_file(other)["w"], result["w"])
    assert metadata_of(other) == {"format": "ms", "note": "end of 2"}
    parameters = mindspore.load_checkpoint(str(other), format="safetensors")
    np.testing.assert_array_equal(parameters["w"].asnumpy(), result["w"])


@pytest.mark.parametrize("sharded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_more_checkpoints_than_a_process_may_have_open_files(tmp_path: Path, sharded: bool) -> None:
    for number in range(1, 81):
        arrays = [{f"{name}.w": np.full((2, 3), number, np.float32)} for name in "ab"]
        if sharded:
            write_shards(tmp_path / "run" / f"checkpoint-{number}", arrays)
        else:
            write_file(tmp_path / "run" / f"n-1_{number}.safetensors", arrays[0] | arrays[1])
    calls = [["merge", tmp_path / "run", "--out", tmp_path / ("mean" if sharded else "mean.safetensors")]]
    if not sharded:
        calls += [[*calls[0][:-1], tmp_path / "best.safetensors", "--metric", f"{METRICS}:constant", "--minimize"]]
        calls += [["pca", "--ckpt-dir", tmp_path / "run", "--n-components", "1", "--out", tmp_path / "pca_mat.npy"]]
    for call in calls:
        program = ["bash", "-c", 'ulimit -n 40 && exec "$@"', "bash", Path(sys.executable).with_name("dimred"), *call]
        process = subprocess.run(program, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    path = tmp_path / ("mean/model-00001-of-00002.safetensors" if sharded else "mean.safetensors")
    assert (read_file(path)["a.w"] == 40.5).all()


def unit(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    vector = draw(shape, np.float32, seed)
    return vector / np.linalg.norm(vector)


def test_vectors_of_a_spectral_norm_keep_their_norm_and_what_is_called_like_them_has_its_plain_mean(
    tmp_path: Path,
) -> None:
    """``weight_v`` of a weight norm is a matrix, and ``pos_bias_u`` of a transformer is trained."""
    names = ("conv.weight_u", "conv.parametrizations.weight.0._v", "SpectralNorm_0/kernel/u")
    runs = []
    for number in range(4):
        arrays = {name: unit(10 * number + place, (1, 9)[place < 2 :]) for place, name in enumerate(names)}
        arrays |= {"fc.weight_v": unit(number, (3, 4)), "pos_bias_u": draw((8,), np.float32, number)}
        runs.append(arrays)
        write_file(tmp_path / "run" / f"n-{number}.safetensors", arrays)
    record = dimred.merge(tmp_path / "run", tmp_path / "mean.safetensors", profile="linear")
    result = read_file(tmp_path / "mean.safetensors")
    for name, value in result.items():
        mean = oracle.weighted_mean([one[name] for one in runs], [1, 2, 3, 4])
        scale = np.linalg.norm(mean) if name in names else 1.0
        np.testing.assert_allclose(value, mean / scale, rtol=1e-6)
    assert record["spectral_norm"] == "3 vectors are averages, scaled to norm 1"
