"""Adapters are averaged by what they add to the network, not by their factors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import CheckpointError, ConfigError, RunError
from tests.helpers.adapters import (
    CONFIG,
    HEAD,
    LAYERS,
    adapter,
    deltas,
    names_of,
    read_adapter,
    write_adapter,
    write_adapters,
)
from tests.helpers.checkpoint_files import BITS, as_float, read_file, write_file, write_shards
from tests.helpers.commands import dimred_here as command
from tests.oracles import merge as oracle

BOTH = pytest.mark.parametrize("rslora", [False, True], ids=["plain", "rslora"])


def mean_of(arrays: list[dict[str, np.ndarray]], config: dict, coefficients: list[float]) -> dict[str, np.ndarray]:
    each = [deltas(tensors, config) for tensors in arrays]
    return {layer: oracle.weighted_mean([one[layer] for one in each], coefficients) for layer in LAYERS}


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BITS])
def test_equal_adapters_keep_every_factor_and_have_the_mean(tmp_path: Path, rslora: bool, dtype: type) -> None:
    arrays = write_adapters(tmp_path / "run", 5, dtype, use_rslora=rslora)
    record = dimred.merge(tmp_path / "run", tmp_path / "mean")
    dimred.merge(tmp_path / "run", tmp_path / "shares", profile="0.2,0.2,0.2,0.2,0.2")
    result, config = read_adapter(tmp_path / "mean")
    assert config["r"] == 20
    assert config["lora_alpha"] == (pytest.approx(6 / 5**0.5) if rslora else 6)
    for layer in LAYERS:
        for axis, name in enumerate(names_of(layer)):
            together = np.concatenate([as_float(one[name]) for one in arrays], axis=axis)
            np.testing.assert_array_equal(result[name], together, strict=True)
            np.testing.assert_array_equal(read_adapter(tmp_path / "shares")[0][name], together, strict=True)
    reference = mean_of(arrays, CONFIG | {"use_rslora": rslora}, [1, 1, 1, 1, 1])
    for layer, delta in deltas(result, config).items():
        np.testing.assert_allclose(delta, reference[layer], rtol=0, atol=1e-14 * np.abs(reference[layer]).max())
    head = oracle.weighted_mean([as_float(one[HEAD]) for one in arrays], [1, 1, 1, 1, 1])
    np.testing.assert_allclose(result[HEAD], head, rtol=2**-8)
    assert record["lora"].startswith("the mean of 5 products B A, exact: rank 20, lora_alpha ")


PATTERNS = {"rank_pattern": {"embed": 2, "conv": 1}, "alpha_pattern": {"^conv": 5}}


@BOTH
@pytest.mark.parametrize(
    ("coefficients", "rank", "changes"),
    [
        ([1.0, 2.0, 3.0], None, {}),
        ([0.25, 0.5, 0.25], None, {}),
        ([0.5, 0.0, 0.5], None, {}),
        *(([1.0, 2.0, 3.0], rank, {}) for rank in (1, 5, 10)),
        *(([1.0, 2.0, 3.0], rank, PATTERNS) for rank in (None, 4)),
    ],
)
def test_the_mean_or_the_nearest_matrix_of_a_rank(tmp_path, rslora, coefficients, rank, changes) -> None:
    changes = changes | {"use_rslora": rslora, "init_lora_weights": "orthogonal"}  # does not allow every rank
    arrays = [adapter(seed, np.float64, changes.get("rank_pattern")) for seed in range(3)]
    for number, tensors in enumerate(arrays):
        write_adapter(tmp_path / "run" / f"a-{number}", tensors, **changes)
    profile = "linear" if coefficients[0] == 1 else ",".join(map(str, coefficients))
    record = dimred.merge(tmp_path / "run", tmp_path / "mean", profile=profile, lora_rank=rank)
    result, config = read_adapter(tmp_path / "mean")
    assert config["r"] == (rank or 4 * np.count_nonzero(coefficients))
    assert config.get("rank_pattern") == ({"embed": rank or 6, "conv": 3} if "rank_pattern" in changes else None)
    assert config["init_lora_weights"] is True
    reference = mean_of(arrays, CONFIG | changes, coefficients)
    lost_square = whole = 0.0
    for layer, delta in deltas(result, config).items():
        np.testing.assert_allclose(delta, oracle.nearest_of_rank(reference[layer], rank or 12), rtol=0, atol=1e-12)
        lost_square, whole = (
            lost_square + np.sum((delta - reference[layer]) ** 2),
            whole + np.sum(reference[layer] ** 2),
        )
    sentence = f"without {100 * (lost_square / whole) ** 0.5:.2g} % of the norm" if rank else ", exact: "
    assert sentence in record["lora"]


@pytest.mark.parametrize("options", [{"last": 1}, {"profile": "0,0,1"}])
def test_one_adapter_gives_itself_back_byte_for_byte(tmp_path: Path, options: dict) -> None:
    write_adapters(tmp_path / "run", 3, BITS, init_lora_weights="gaussian")
    for path in (tmp_path / "run").rglob("adapter_config.json"):
        path.write_text(json.dumps(json.loads(path.read_text())))  # not as PEFT formats it
    dimred.merge(tmp_path / "run", tmp_path / "same", **options)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "same" / name).read_bytes() == (tmp_path / "run" / "checkpoint-300" / name).read_bytes()


@pytest.mark.parametrize("rank", [None, 6])
def test_a_metric_chooses_among_adapters(tmp_path: Path, rank: int | None) -> None:
    """Candidates are folders with a configuration, which a metric can load as usual."""
    arrays = write_adapters(tmp_path / "run", 5)
    good, ranks = mean_of(arrays[2:], CONFIG, [1, 1, 1])["dense"], set()

    def distance(candidate: str) -> float:
        tensors, config = read_adapter(Path(candidate))
        ranks.add(config["r"])
        return float(np.linalg.norm(deltas(tensors, config)["dense"] - good))

    record = dimred.merge(tmp_path / "run", tmp_path / "best", metric=distance, minimize=True, lora_rank=rank)
    assert record["kept"]["name"] == "uniform of 3 snapshots, steps 300 to 500"
    assert record["lora"].startswith("the mean of 3 products B A, ")
    assert ranks == ({4, 6} if rank else {4, 8, 12, 20})
    choice = deltas(*read_adapter(tmp_path / "best"))["dense"]
    np.testing.assert_allclose(choice, oracle.nearest_of_rank(good, rank or 12), rtol=0, atol=1e-5)
    shutil.rmtree(tmp_path / "best")
    (tmp_path / "best.json").unlink()
    options = {"metric": distance, "minimize": True, "lora_rank": 2, "resume": True}
    with pytest.raises(
        RunError, match=f"belongs to a merge with a different lora_rank: {rank}, not 2; write to another file"
    ):
        dimred.merge(tmp_path / "run", tmp_path / "best", **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": 8}, "r is 8 in {0} and 4 in {1}; only adapters that agree on it can be averaged"),
        ({"lora_alpha": 16}, "lora_alpha is 16 in {0} and 6 in {1}"),
        ({"use_rslora": True}, "use_rslora is True in {0} and None in {1}"),
        ({"target_modules": ["dense"]}, "target_modules is ['dense'] in {0} and ['dense', 'embed'] in {1}"),
        ({"base_model_name_or_path": "org/other"}, "base_model_name_or_path is 'org/other' in {0}"),
        ({"use_dora": True}, "{0} is an adapter that can't be averaged: use_dora is True, with which an adapter adds"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changed the base network"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; allowed: 'LORA'"),
        ({"r": 0}, "{0}/adapter_config.json is not the configuration of an adapter (ValueError: r is 0 and lora_"),
        ({"r": "4"}, "is not the configuration of an adapter (TypeError"),
        ({"rank_pattern": ["embed"]}, "is not the configuration of an adapter (AttributeError"),
        ({"rank_pattern": {"embed": 0}}, "is not the configuration of an adapter (ValueError"),
        ({"alpha_pattern": {"(": 2}}, "is not the configuration of an adapter (error"),
    ],
)
def test_adapters_that_have_no_mean_are_refused(tmp_path: Path, changes: dict, words: str) -> None:
    write_adapters(tmp_path / "run", 2)
    write_adapter(tmp_path / "run" / "checkpoint-100", adapter(0), **changes)
    with pytest.raises(CheckpointError) as error:
        dimred.merge(tmp_path / "run", tmp_path / "mean")
    assert words.format(*(tmp_path / "run" / f"checkpoint-{number}00" for number in (1, 2))) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("trainable_token_indices", [9, 5, 3], [3, 5, 9]),  # row i of the saved rows belongs to token i of the list
        ("trainable_token_indices", {"embed": [9, 5, 3]}, {"embed": [3, 5, 9]}),
        ("alora_invocation_tokens", [2, 1], [1, 2]),  # a sequence of tokens
        ("layer_replication", [[2, 4], [0, 2]], [[0, 2], [2, 4]]),  # how the layers are stacked
        ("alpha_pattern", {"conv": 3, "^conv": 5}, {"^conv": 5, "conv": 3}),  # the first pattern that fits counts
    ],
)
def test_adapters_whose_lists_are_in_another_order_are_refused(tmp_path, key: str, one: object, other: object) -> None:
    for number, value in enumerate((one, other)):
        folder = write_adapter(tmp_path / "run" / f"checkpoint-{number}", adapter(number))
        (folder / "adapter_config.json").write_text(json.dumps(CONFIG | {key: value}))
    with pytest.raises(CheckpointError, match=f"^{key} is .* in .*checkpoint-0 and .* in .*checkpoint-1; only"):
        dimred.merge(tmp_path / "run", tmp_path / "mean")


def test_the_order_of_what_peft_keeps_as_sets_does_not_matter(tmp_path: Path) -> None:
    lists = {"target_modules": ["dense", "embed", "conv"], "exclude_modules": ["a", "b"], "layers_to_transform": [0, 7]}
    lists |= {"modules_to_save": ["head", "tail"]}
    for number, turned in enumerate((lists, {key: value[::-1] for key, value in lists.items()})):
        write_adapter(tmp_path / "run" / f"checkpoint-{number}", adapter(number), **turned)
    assert len(dimred.merge(tmp_path / "run", tmp_path / "mean")["checkpoints"]) == 2


def test_a_mean_keeps_the_order_of_its_patterns(tmp_path: Path) -> None:
    """PEFT takes the first pattern that fits a module; sorted by name, another one would give its alpha."""
    patterns = {"conv": 5, ".*": 3}
    for number in range(2):
        folder = write_adapter(tmp_path / "run" / f"checkpoint-{number}", adapter(number))
        (folder / "adapter_config.json").write_text(json.dumps(CONFIG | {"alpha_pattern": patterns}))
    dimred.merge(tmp_path / "run", tmp_path / "mean")
    assert list(read_adapter(tmp_path / "mean")[1]["alpha_pattern"].items()) == [("conv", 5), (".*", 3)]


ONES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (adapter(1) | {"model.dense.lora_magnitude": ONES}, "lora_magnitude' is not a factor with a partner"),
        (adapter(1) | {"model.x.lora_A.weight": ONES}, "'model.x.lora_A.weight' is not a factor with a partner"),
        ({HEAD: ONES}, "is an adapter that can't be averaged: it has no factors"),
    ],
)
def test_tensors_that_are_no_factors_are_refused(tmp_path: Path, tensors: dict, words: str) -> None:
    for number in (1, 2):
        write_adapter(tmp_path / "run" / f"checkpoint-{number}", tensors)
    with pytest.raises(CheckpointError, match=words):
        dimred.merge(tmp_path / "run", tmp_path / "mean")


def test_a_factor_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    tensors = write_adapters(tmp_path / "run", 2)[0]
    tensors[names_of("conv")[0]][0, 0] = np.nan
    write_adapter(tmp_path / "run" / "checkpoint-100", tensors)
    with pytest.raises(CheckpointError, match=r"checkpoint-100: .*conv.lora_A.weight' holds an infinite number or NaN"):
        dimred.merge(tmp_path / "run", tmp_path / "mean")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_adapters(tmp_path / "run", 2)
    for out, options, words in (
        ("mean.safetensors", {}, "but the checkpoints are LoRA adapters; name a folder, without an ending"),
        ("mean", {"lora_rank": 0}, "lora_rank is 0"),
        ("mean", {"rest": tmp_path / "run" / "checkpoint-100"}, "but LoRA adapters have nothing else to copy"),
    ):
        with pytest.raises(ConfigError) as error:
            dimred.merge(tmp_path / "run", tmp_path / out, **options)
        assert words in str(error.value)
    for number in (1, 2):
        write_file(tmp_path / "plain" / f"n-{number}.safetensors", {"w": ONES})
    with pytest.raises(ConfigError, match="lora_rank is 4, but the checkpoints are not LoRA adapters; leave it out"):
        dimred.merge(tmp_path / "plain", tmp_path / "mean.safetensors", lora_rank=4)


def test_the_command_with_files_instead_of_folders(tmp_path: Path) -> None:
    write_adapters(tmp_path / "run", 3)
    files = sorted((tmp_path / "run").glob("*/adapter_model.safetensors"))
    changes = {"target_modules": ["embed", "dense"], "lora_dropout": 0.0, "revision": None}
    write_adapter(tmp_path / "run" / "checkpoint-100", adapter(0), **changes)  # these changes are no differences
    process = command("merge", *files, "--lora-rank", "6", "--dtype", "bfloat16", "--out", tmp_path / "mean")
    assert "LoRA: the mean of 3 products B A, the largest singular values, without " in process.stdout, process.stderr
    assert json.loads((tmp_path / "mean" / "adapter_config.json").read_text())["r"] == 6
    kinds = {value.dtype for value in read_file(tmp_path / "mean" / "adapter_model.safetensors").values()}
    assert kinds == {np.dtype(BITS)}


def test_factors_in_two_shards(tmp_path: Path) -> None:
    """PEFT writes none, but sharding a folder of weights gives them."""
    arrays = [adapter(seed) for seed in range(2)]
    for number, tensors in enumerate(arrays):
        folder = write_adapter(tmp_path / "run" / f"checkpoint-{number}", tensors)
        (folder / "adapter_model.safetensors").unlink()
        names = sorted(tensors)
        write_shards(folder, [{name: tensors[name] for name in part} for part in (names[::2], names[1::2])])
    dimred.merge(tmp_path / "run", tmp_path / "mean")
    result = {
        name: value for path in (tmp_path / "mean").glob("*.safetensors") for name, value in read_file(path).items()
    }
    for axis, name in enumerate(names_of("dense")):
        np.testing.assert_array_equal(result[name], np.concatenate([one[name] for one in arrays], axis=axis))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("base_model.model.dense.lora_A.weight", "base_model.model.dense.lora_B.weight"),
        ("to_k.lora.down.weight", "to_k.lora.up.weight"),
        ("processor.to_k_lora.up.weight", "processor.to_k_lora.down.weight"),
        ("wq.mindpet_delta_lora_a", "wq.mindpet_delta_lora_b"),
        ("qkv_lora1.down.weight", "qkv_lora1.up.weight"),
        ("lycoris_blocks_0.lokr_w1", "lycoris_blocks_0.lokr_w2_a"),
        ("lycoris_blocks_0.hada_w1_a", "lycoris_blocks_0.hada_w1_b"),
    ],
)
def test_factors_of_every_maker_are_refused_without_a_configuration(tmp_path: Path, one: str, other: str) -> None:
    for number in (1, 2):
        arrays = {name: np.full((2, 3), number, np.float32) for name in (one, other)}
        write_file(tmp_path / f"n-{number}.safetensors", arrays)
    with pytest.raises(CheckpointError, match=f"factors, such as '({one}|{other})', without the adapter_config.json"):
        dimred.merge(tmp_path, tmp_path / "mean.safetensors")


@pytest.mark.parametrize("name", ["attn.w_lora.lora.0.weight", "lora_head.weight", "net.lora_b_norm.weight"])
def test_a_network_s_own_module_may_be_called_lora(tmp_path: Path, name: str) -> None:
    for number in (1, 2):
        write_file(tmp_path / f"n-{number}.safetensors", {name: np.full((2, 3), number, np.float32)})
    dimred.merge(tmp_path, tmp_path / "mean.safetensors")
    assert (read_file(tmp_path / "mean.safetensors")[name] == 1.5).all()
