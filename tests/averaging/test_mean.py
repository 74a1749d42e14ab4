"""Streamed sums equal the oracle's plain loop to the last bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dimred
from dimred.averaging.mean import BLOCK, buffer, mean_vector, open_fitting, stream_mean
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.stored_tensor import BFLOAT16
from dimred.errors import CheckpointError
from dimred.merging.inputs import open_checkpoints
from dimred.merging.output import round_to, write_network
from tests.helpers.checkpoint_files import BITS, as_float, draw, in_type, network, read_file, write_file, write_run
from tests.oracles import merge as oracle

TYPES = [np.float32, np.float16, BITS, np.float64]


def merged(run: Path, coefficients: list[float], out: Path) -> dict[str, np.ndarray]:
    checkpoints = open_checkpoints([run])
    write_network(checkpoints, np.array(coefficients), out, checkpoints[-1])
    return read_file(out)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("coefficients", [[1, 1, 1], [1, 2, 3], [0.7, 0.4, 0.7], [0, 0, 1], [0.1, 0, 0.2]], ids=str)
def test_the_mean_is_the_plain_loops_to_the_last_bit(tmp_path: Path, dtype: type, coefficients: list[float]) -> None:
    arrays = [{"w": draw((123, 17), dtype, seed)} for seed in range(3)]
    for number, tensors in enumerate(arrays):
        write_file(tmp_path / "run" / f"net-{number}.safetensors", tensors)
    answer = oracle.weighted_mean([as_float(tensors["w"]) for tensors in arrays], coefficients)
    result = merged(tmp_path / "run", coefficients, tmp_path / "out.safetensors")
    np.testing.assert_array_equal(result["w"], in_type(answer, dtype))


@pytest.mark.parametrize("coefficients", [[1, 1], [0.3, 0.7], [0, 1]], ids=str)
def test_the_mean_of_equal_files_has_their_bytes(tmp_path: Path, coefficients: list[float]) -> None:
    values = np.array([-0.0, 0.0, 1.5, -2.0], np.float32)
    for number in range(2):
        write_file(tmp_path / "run" / f"net-{number}.safetensors", {"w": values})
    assert merged(tmp_path / "run", coefficients, tmp_path / "out.safetensors")["w"].tobytes() == values.tobytes()


def test_tensors_of_several_blocks_and_parts(tmp_path: Path) -> None:
    arrays = [{"w": draw((1100, 1201), np.float32, seed)} for seed in range(2)]
    for number, tensors in enumerate(arrays):
        write_file(tmp_path / "run" / f"net-{number}.safetensors", tensors)
    result = merged(tmp_path / "run", [1, 3], tmp_path / "out.safetensors")
    answer = oracle.weighted_mean([tensors["w"] for tensors in arrays], [1, 3])
    np.testing.assert_array_equal(result["w"], answer.astype(np.float32))


@given(st.lists(st.floats(width=64, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_bfloat16_is_rounded_once(values: list[float]) -> None:
    result = round_to(np.array(values), BFLOAT16)
    assert result.tolist() == oracle.to_bfloat16(np.array(values)).tolist()


def test_bfloat16_of_more_values_than_a_block() -> None:
    values = np.random.default_rng(0).standard_normal(BLOCK + 1)
    for part in (values[:3], values):  # the second needs more memory than the first has left
        np.testing.assert_array_equal(round_to(part, BFLOAT16), oracle.to_bfloat16(part))


@settings(max_examples=300)
@given(st.integers(0, 0x7F7F), st.integers(-3, 3), st.booleans())
def test_bfloat16_ties_and_their_neighbours(bits: int, away: int, negative: bool) -> None:
    """Round ties between two bfloat16, and values one float64 off, which float32 would turn into ties."""
    above = 2.0**128 if bits == 0x7F7F else oracle.from_bfloat16(bits + 1)
    value = (oracle.from_bfloat16(bits) + above) / 2
    for _ in range(abs(away)):
        value = float(np.nextafter(value, np.inf if away > 0 else 0))
    value = -value if negative else value
    assert round_to(np.array([value]), BFLOAT16) == oracle.to_bfloat16(np.array([value]))


def test_numbers_that_are_not_finite_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    bad = network(1)
    bad["fc.weight"][3, 5] = np.nan
    write_file(tmp_path / "run" / "checkpoint-2000" / "model.safetensors", bad)
    with pytest.raises(CheckpointError, match=r"checkpoint-2000: 'fc\.weight' holds an infinite number or NaN"):
        dimred.merge(tmp_path / "run", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_vector_of_weights_is_the_mean_in_the_order_of_its_layout(tmp_path: Path, dtype: type) -> None:
    arrays = write_run(tmp_path, 3, dtype)
    layout = WeightLayout(("fc.weight", "conv.weight"), ((210, 1000), (7, 3, 3)))
    result = mean_vector(open_checkpoints([tmp_path]), np.array([0.5, 0, 0.25]), layout)
    answer = [oracle.weighted_mean([as_float(arrays[i][name]) for i in (0, 2)], [0.5, 0.25]) for name in layout.names]
    np.testing.assert_array_equal(result, np.concatenate([mean.ravel() for mean in answer]).astype(np.float32))


def test_a_vector_of_tensors_that_are_longer_than_a_block(tmp_path: Path) -> None:
    shapes = {"short": (5,), "other": (BLOCK,), "long": (2, BLOCK + 3)}
    arrays = [{name: draw(shape, np.float32, seed) for name, shape in shapes.items()} for seed in range(2)]
    for number, tensors in enumerate(arrays):
        write_file(tmp_path / f"net-{number}.safetensors", tensors)
    layout = WeightLayout(tuple(shapes), tuple(shapes.values()))
    result = mean_vector(open_checkpoints([tmp_path]), np.array([1, 3]), layout)
    answer = [oracle.weighted_mean([tensors[name] for tensors in arrays], [1, 3]) for name in shapes]
    np.testing.assert_array_equal(result, np.concatenate([mean.ravel() for mean in answer]).astype(np.float32))


def test_a_checkpoint_that_does_not_count_may_have_numbers_that_are_not_finite(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], np.float32)
    for number, content in enumerate((np.full(2, np.nan, np.float32), values, values)):
        write_file(tmp_path / "run" / f"net-{number}.safetensors", {"w": content})
    result = merged(tmp_path / "run", [0, 1, 1], tmp_path / "out.safetensors")
    np.testing.assert_array_equal(result["w"], values)


def test_a_buffer_is_used_again_for_the_same_type_alone() -> None:
    first = buffer("of a test", 5, np.float32)
    assert buffer("of a test", 5, np.float32) is first
    assert buffer("of a test", 5, np.float16).dtype == np.float16


MASK = np.full(BLOCK // 4 + 3, -np.inf, np.float32)  # its bytes are compared in two pieces


@pytest.mark.parametrize("coefficients", [[1, 1], [1, 1, 1], [0, 0, 1]], ids=str)
def test_a_tensor_that_is_equal_in_all_checkpoints_is_passed_on_whatever_it_holds(
    tmp_path: Path, coefficients: list[float]
) -> None:
    """The bytes around it in the file differ."""
    for number in range(len(coefficients)):
        sign = np.full(9, (-1) ** number, np.float32)
        write_file(tmp_path / "run" / f"net-{number}.safetensors", {"before": sign, "mask": MASK, "w": sign})
    result = merged(tmp_path / "run", coefficients, tmp_path / "out.safetensors")
    assert result["mask"].tobytes() == MASK.tobytes()


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("other", [0, 1, 2])
def test_a_tensor_that_differs_in_one_byte_of_one_checkpoint_is_not_passed_on(
    tmp_path: Path, other: int, place: int
) -> None:
    for number in range(3):
        mask = MASK.copy()
        mask.view(np.uint8)[place] ^= number == other
        write_file(tmp_path / "run" / f"net-{number}.safetensors", {"mask": mask})
    with pytest.raises(CheckpointError, match="'mask' holds an infinite number or NaN"):
        merged(tmp_path / "run", [1, 1, 1], tmp_path / "out.safetensors")


def test_a_single_checkpoint_is_checked_too(tmp_path: Path) -> None:
    write_file(tmp_path / "net.safetensors", {"mask": MASK})
    single = open_fitting([tmp_path / "net.safetensors"], WeightLayout(("mask",), (MASK.shape,)))
    with pytest.raises(CheckpointError, match="'mask' holds an infinite number or NaN"):
        stream_mean(single, np.ones(1), ["mask"], lambda name, start, values: None)


LARGEST = {"float16": 65_504.0, "float32": float(np.finfo(np.float32).max), "bfloat16": oracle.from_bfloat16(0x7F7F)}


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_mean_too_large_for_its_type_is_refused(tmp_path: Path, dtype: str, sign: int) -> None:
    largest = LARGEST[dtype]
    above = 2.0 ** np.ceil(np.log2(largest))
    rounded_up = largest + (above - largest) / 2  # half way to what would be the next number
    for value, fits in ((float(np.nextafter(rounded_up, 0)), True), (rounded_up, False)):
        for number in (1, 2):
            write_file(tmp_path / "run" / f"n-{number}.safetensors", {"w": np.array([0, sign * value])})
        out = tmp_path / f"{fits}.safetensors"
        if fits:
            dimred.merge(tmp_path / "run", out, dtype=dtype)
            assert as_float(read_file(out)["w"]).tolist() == [0, sign * largest]
        else:
            with pytest.raises(CheckpointError, match=f"The mean of 'w' has a number that is too large for {dtype}"):
                dimred.merge(tmp_path / "run", out, dtype=dtype)
            assert not out.exists()


def test_nan_stays_nan_in_bfloat16() -> None:
    """CUDA's NaN has all bits of the fraction set, so that rounding its bits would give -0."""
    values = np.array([0x7FFFFFFF, 0x7FC00000, 0x7FF00000, 0xFFFFFFFF], np.uint32).view(np.float32).astype(np.float64)
    result = round_to(values, BFLOAT16)
    assert np.isnan((result.astype(np.uint32) << 16).view(np.float32)).all()


def test_a_file_that_is_cut_meanwhile_is_noticed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2)
    checkpoints = open_checkpoints([tmp_path / "run"])
    file = checkpoints[0].files[0]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="ends at byte"):
        mean_vector(checkpoints, np.ones(2), checkpoints[0].layout)
