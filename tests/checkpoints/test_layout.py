import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dimred
from dimred.checkpoints.layout import CHUNK, WeightLayout, hash_columns, vector_digest, weights_digest
from dimred.errors import BasisMismatchError, CheckpointError, ConfigError

WEIGHTS = {
    "conv": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scale": np.float32(7.0).reshape(()),
    "fc": np.full(4, 9.0),
}


def test_flatten_puts_parameters_one_after_the_other_in_order():
    layout = WeightLayout.from_weights(WEIGHTS)
    assert layout.offsets == (0, 6, 7)
    assert layout.size == 11
    assert layout.flatten(WEIGHTS).tolist() == [0, 1, 2, 3, 4, 5, 7, 9, 9, 9, 9]
    assert layout.flatten(WEIGHTS).dtype == np.float32
    weights = {"fc": WEIGHTS["fc"], "moments.fc": WEIGHTS["fc"], "scale": WEIGHTS["scale"], "conv": WEIGHTS["conv"]}
    assert np.array_equal(layout.flatten(weights), layout.flatten(WEIGHTS))


@given(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=6))
def test_unflatten_is_the_inverse_of_flatten(shapes):
    layout = WeightLayout(tuple(f"p{i}" for i in range(len(shapes))), tuple(map(tuple, shapes)))
    vector = np.arange(layout.size, dtype=np.float32)
    parts = layout.unflatten(vector)
    assert [part.shape for part in parts.values()] == list(layout.shapes)
    assert np.array_equal(layout.flatten(parts), vector)


def test_a_missing_or_reshaped_parameter_is_named():
    layout = WeightLayout.from_weights(WEIGHTS)
    with pytest.raises(CheckpointError, match="'scale'"):
        layout.flatten({"conv": WEIGHTS["conv"], "fc": WEIGHTS["fc"]})
    with pytest.raises(CheckpointError, match=r"'conv' has shape \(3, 2\).*\(2, 3\)"):
        layout.flatten({**WEIGHTS, "conv": WEIGHTS["conv"].T})
    with pytest.raises(BasisMismatchError, match=r"\(10,\).*\(11,\)"):
        layout.unflatten(np.zeros(10, np.float32))


def test_fingerprint_depends_on_names_order_and_shapes_only():
    layout = WeightLayout(("a", "b"), ((2,), (3,)))
    assert layout.fingerprint == WeightLayout(("a", "b"), ((2,), (3,))).fingerprint
    others = [
        (("a", "c"), ((2,), (3,))),
        (("b", "a"), ((3,), (2,))),
        (("a", "b"), ((3,), (2,))),
        (("a", "b"), ((2, 1), (3,))),
    ]
    assert len({layout.fingerprint, *(WeightLayout(*other).fingerprint for other in others)}) == 5


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"names": ["a"]},
        {"names": ["a"], "shapes": [[-1]]},
        {"names": [1], "shapes": [[1]]},
        {"names": ["a"], "shapes": [[1.5]]},
        {"names": ["a"], "shapes": [[True]]},
        {"names": ["a"], "shapes": "x"},
        {"names": ["a", "a"], "shapes": [[1], [1]]},
        {"names": ["a"], "shapes": []},
        {"names": [], "shapes": []},
    ],
)
def test_from_json_refuses_anything_else(data):
    with pytest.raises(BasisMismatchError):
        WeightLayout.from_json(data)


def test_from_network_takes_trainable_parameters_in_the_networks_order():
    nn = pytest.importorskip("mindspore.nn")
    network = nn.SequentialCell(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dense(4, 3))
    layout = WeightLayout.from_network(network)
    assert layout.names == tuple(p.name for p in network.trainable_params())
    assert not any("moving" in name for name in layout.names)
    weights = {p.name: p for p in network.get_parameters()}
    answer = np.concatenate([p.asnumpy().reshape(-1) for p in network.trainable_params()])
    assert np.array_equal(layout.flatten(weights), answer)


VECTOR = np.arange(150_000, dtype=np.float32)


def test_digests_are_those_of_the_first_version():
    """Manifests and bases on disk have these digests, so their values may never change."""
    answer = "588ca90395877b5edec06974c470d3d383a624e77c8f385449a1652a40e314c4"
    assert {vector_digest(VECTOR.astype(dtype)) for dtype in (np.float32, np.float64, ">f4")} == {answer}
    rows = np.arange(300_000, dtype=np.float32).reshape(2, -1)
    assert vector_digest(rows) == "3140eebaeb8c85d63498765b4a9b32ebffa7bd1ab8de013eacefbcb3fd5e9a69"
    block_by_block = hashlib.sha256()
    for start in range(0, rows.shape[1], 2 * CHUNK):
        hash_columns(block_by_block, rows[:, start : start + 2 * CHUNK])
    assert block_by_block.hexdigest() == vector_digest(rows)


@given(st.lists(st.sampled_from([0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3]), max_size=6))
def test_the_digest_of_weights_is_that_of_their_vector(sizes):
    vector = np.arange(sum(sizes), dtype=np.float32)
    weights = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
    assert weights_digest(weight[::-1].astype(float)[::-1] for weight in weights) == vector_digest(vector)


@pytest.mark.parametrize("make", [WeightLayout.from_weights, WeightLayout.from_network, dimred.merge])
def test_another_kind_of_first_argument_is_named(make):
    arguments = (5, "out.ckpt") if make is dimred.merge else ([np.ones(2)],)
    with pytest.raises(ConfigError, match=r"^(weights is \[array|network is \[array|CHECKPOINTS is 5;).* must be a"):
        make(*arguments)
