"""MindSpore's attention in a search: the same outputs, with dropout masks that can be drawn again."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.search_step.attention import ReplayableAttention
from dimred.search_step.dropout import draw_masks, make_replayable
from dimred.stages.subspace_train_step import SubspaceTrainStep
from tests.helpers.modes import slow_in_graph
from tests.helpers.networks import basis_for

WIDTH, N_HEADS, N_QUERIES, N_KEYS, N = 8, 2, 5, 4, 3
RNG = np.random.default_rng(0)
# Of nn.MultiheadAttention; each with some of the others.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"has_bias": False, "add_zero_attn": True},
    {"add_bias_kv": True, "batch_first": True},
    {"kdim": 6, "vdim": 10},
    {"kdim": 6, "vdim": 10, "add_bias_kv": True, "add_zero_attn": True, "has_bias": False},
]


def draw(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


def inputs(options: dict[str, Any], *, single: bool) -> list[Tensor]:
    widths = (WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    lengths = (N_QUERIES, N_KEYS, N_KEYS)
    if single:
        return [draw(length, width) for length, width in zip(lengths, widths, strict=True)]
    is_batch_first = options.get("batch_first", False)
    shapes = [(N, length) if is_batch_first else (length, N) for length in lengths]
    return [draw(*shape, width) for shape, width in zip(shapes, widths, strict=True)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_without_a_mask_it_is_mindspore_s(options: dict[str, Any], pynative: None) -> None:
    theirs = nn.MultiheadAttention(WIDTH, N_HEADS, dropout=0.0, **options)
    ours = ReplayableAttention(theirs, nn.Identity()).set_train()
    causal = Tensor(np.triu(np.ones((N_QUERIES, N_KEYS), bool), 1))
    per_head: dict[str, Any] = {"attn_mask": causal, "average_attn_weights": False}
    for single, more in [(False, {}), (False, per_head), (True, per_head), (True, {"need_weights": False})]:
        of_call = inputs(options, single=single)
        for found, expected in zip(ours(*of_call, **more), theirs(*of_call, **more), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


class Regression(nn.Cell):
    def __init__(self, attention: nn.Cell) -> None:
        super().__init__()
        self.attention = attention
        self.head = nn.Dense(WIDTH, 1)

    def construct(self, x: Tensor) -> Tensor:
        x, _ = self.attention(x, x, x)
        return ops.square(self.head(x) - 1.0).mean()


@slow_in_graph
def test_a_search_repeats_the_masks_of_a_step_and_draws_others_in_the_next(mode: str) -> None:
    ms.set_seed(3)
    attention = nn.MultiheadAttention(WIDTH, N_HEADS, dropout=0.5)
    network = Regression(attention)
    names = [parameter.name for parameter in network.get_parameters()]
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0, sigma=0.2)
    assert [parameter.name for parameter in network.get_parameters()] == names
    assert attention.dropout == 0.5  # one that is used elsewhere, too, still drops there
    x = draw(N, N_QUERIES, WIDTH)
    for number in range(3):
        result = step(x)
        assert result.accepted
        draw_masks(3, number, 0)
        assert float(network(x).asnumpy()) == pytest.approx(result.loss_after, rel=1e-5)
        draw_masks(3, number + 1, 0)
        assert float(network(x).asnumpy()) != pytest.approx(result.loss_after, rel=1e-5)


def test_the_attention_of_mindspore_s_transformer_is_replaced(pynative: None) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, N_HEADS, 16, dropout=0.5, batch_first=True)
    network = nn.SequentialCell(layer).set_train()
    for name in ("dropout", "dropout1", "dropout2"):
        getattr(layer, name).p = 0.0
    assert make_replayable(network)
    x = draw(N, N_QUERIES, WIDTH)
    draw_masks(0, 0, 0)
    first = network(x).asnumpy()
    draw_masks(0, 0, 0)
    np.testing.assert_array_equal(network(x).asnumpy(), first)
    draw_masks(0, 1, 0)
    assert not np.array_equal(network(x).asnumpy(), first)
    network.set_train(False)
    np.testing.assert_array_equal(network(x).asnumpy(), network(x).asnumpy())


@slow_in_graph
def test_masks_drop_the_fraction_and_scale_the_rest_as_in_pynative(mode: str) -> None:
    """The returned weights are those that were dropped, as MindSpore's are."""
    network = nn.SequentialCell(nn.MultiheadAttention(WIDTH, N_HEADS, dropout=0.25, batch_first=True))
    plain = network[0]
    assert make_replayable(network)
    x = draw(30, 40, WIDTH)
    results = []
    for each in (ms.get_context("mode"), ms.PYNATIVE_MODE):
        ms.set_context(mode=each)
        network.set_train(True)
        draw_masks(1, 0, 0)
        results.append([one.asnumpy() for one in network[0](x, x, x, average_attn_weights=False)])
    (output, weights), (again, weights_again) = results
    whole = plain.set_train(False)(x, x, x, average_attn_weights=False)[1].asnumpy()
    kept = weights != 0
    assert kept.mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(weights[kept], whole[kept] / 0.75, rtol=1e-4)
    np.testing.assert_array_equal(kept, weights_again != 0)
    np.testing.assert_allclose(output, again, rtol=1e-4, atol=1e-5)


def test_an_attention_without_dropout_stays_as_it_is() -> None:
    network = nn.SequentialCell(nn.MultiheadAttention(WIDTH, N_HEADS))
    attention = network[0]
    assert not make_replayable(network)
    assert network[0] is attention
