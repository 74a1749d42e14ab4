"""Dropout masks are the same in all trials of a step, differ between steps, and have the right share and gradient."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.search_step.dropout import ReplayableDropout, draw_masks, make_replayable
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.step import TrainStep
from tests.helpers.networks import DropoutNet, RejectAll, basis_for, state_bytes
from tests.oracles import dropout as dropout_twin

SEED = 1


class Layers(nn.Cell):
    """A dropout in each kind of place where a cell can keep one."""

    def __init__(self):
        super().__init__()
        self.attribute = nn.Dropout(p=0.25)
        self.sequence = nn.SequentialCell(nn.Dropout(p=0.25))
        self.listed = nn.CellList([nn.Dropout(p=0.25)])
        self.named = nn.CellDict({"one": nn.Dropout(p=0.25)})

    def construct(self, x):
        return self.attribute(x), self.sequence(x), self.listed[0](x), self.named["one"](x)


@pytest.fixture(scope="module")
def ones():
    return Tensor(np.ones((40, 50), np.float32))


def test_every_dropout_is_replaced_draws_its_own_mask_and_can_draw_it_again(mode, ones):
    network = Layers()
    make_replayable(network)
    network.set_train(True)
    draw_masks(SEED, 7, 0)
    first = [mask.asnumpy() for mask in network(ones)]
    draw_masks(SEED, 7, 0)
    again = [mask.asnumpy() for mask in network(ones)]
    np.testing.assert_array_equal(first, again)
    draw_masks(SEED, 8, 0)
    other = [mask.asnumpy() for mask in network(ones)]
    masks = [*first, *other]
    for one in range(8):
        for two in range(one):
            agreement = np.mean((masks[one] > 0) == (masks[two] > 0))
            assert agreement == pytest.approx(0.75**2 + 0.25**2, abs=0.05)  # as of independent masks
    draw_masks(SEED, 7, 0)
    np.testing.assert_array_equal(first, [mask.asnumpy() for mask in network(ones)])
    network.set_train(False)
    for untouched in network(ones):
        np.testing.assert_array_equal(untouched.asnumpy(), ones.asnumpy())
    assert not list(network.get_parameters())


@pytest.mark.parametrize(("shape", "p"), [((5,), 0.3), ((3, 2, 4, 2), 0.9), ((7, 11), 0.0001)])
def test_masks_are_those_of_the_twin(mode, shape, p):
    cell, step = ReplayableDropout(p, n_joint=0, site=3).set_train(), 123_456_789 + 2**31
    draw_masks(0, step, 0)
    for call in (0, 1):
        key = (step - 2**32 + call * 0x27D4EB2F) * 0xC2B2AE35 + 3 * 7919 + 1
        kept = cell(Tensor(np.ones(shape, np.float32))).asnumpy() != 0
        np.testing.assert_array_equal(kept, dropout_twin.kept(shape, p, key))


def test_masks_are_as_independent_as_those_of_a_good_generator():
    """No shift of a mask, of that of the next step or cell or rank, agrees with it more often than chance allows."""
    p, n_steps, size = 0.1, 4, 2**17
    network = nn.SequentialCell(*(nn.Dropout(p=p) for _ in range(2))).set_train()
    make_replayable(network)
    flat = []
    for numbers in [(step, 0) for step in range(n_steps)] + [(0, 1), (0, 2)]:
        draw_masks(SEED, *numbers)
        for cell in network:
            kept = cell(Tensor(np.ones((128, size // 128), np.float32))).asnumpy().ravel() > 0
            assert abs(kept.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / size)
            flat.append((kept - (1 - p)) / np.sqrt(p * (1 - p)))
    spectra = np.fft.rfft(flat, 2 * size)
    n_overlapping = size - np.arange(size // 2)
    for spectrum in spectra[1:]:
        scores = np.fft.irfft(spectrum * spectra[0].conj())[: size // 2] / np.sqrt(n_overlapping)
        assert np.abs(scores).max() < 6.5  # of 65,536 normal numbers the largest exceeds this once in 10^5 times
    itself = np.fft.irfft(np.abs(spectra[0]) ** 2)[1 : size // 2] / np.sqrt(n_overlapping[1:])
    assert np.abs(itself).max() < 6.5


def test_a_cell_in_two_places_is_replaced_in_both_and_nothing_else_is():
    relu, twice = nn.ReLU(), nn.Dropout(p=0.5)
    network = nn.SequentialCell(nn.Dense(50, 50), relu, nn.Dense(50, 50), relu, twice, nn.Dense(50, 50), twice)
    dense = [network[0], network[2], network[5]]
    make_replayable(network)
    first, second = network[4], network[6]
    assert list(network) == [dense[0], relu, dense[1], relu, first, dense[2], second]
    assert [type(cell) for cell in (first, second)] == [ReplayableDropout, ReplayableDropout]
    assert np.any(first.set_train()(ones := Tensor(np.ones(50, np.float32))).asnumpy() != second(ones).asnumpy())


def test_parts_that_earlier_searches_had_draw_new_masks_too_and_not_the_same(mode):
    parts = [nn.SequentialCell(nn.Dropout(p=0.5)) for _ in range(2)]
    for part in parts:
        make_replayable(part)
    make_replayable(nn.SequentialCell(*parts))
    ones, masks = Tensor(np.ones(50, np.float32)), []
    for step in (1, 2, 1):
        draw_masks(SEED, step, 0)
        masks.append([part.set_train()(ones).asnumpy().tobytes() for part in parts])
    assert masks[0] == masks[2]
    assert len({*masks[0], *masks[1]}) == 4


def test_a_probability_of_1_drops_everything(mode):
    network = nn.SequentialCell(nn.Dropout2d(p=1.0))
    make_replayable(network)
    network.set_train(True)
    assert not network(Tensor(np.ones((2, 3, 2, 2), np.float32))).asnumpy().any()


def test_masks_follow_the_seed(pynative):
    masks = []
    for seed in (1, 2, 1):
        network = nn.SequentialCell(nn.Dropout(p=0.5)).set_train()
        make_replayable(network)
        draw_masks(seed, 0, 0)
        masks.append(network(Tensor(np.ones(200, np.float32))).asnumpy().tobytes())
    assert masks[0] == masks[2] != masks[1]


def test_a_dropout_with_a_construct_of_its_own_stays():
    class Own(nn.Dropout):
        def construct(self, x):
            return -x

    network = nn.SequentialCell(Own(p=0.5))
    make_replayable(network)
    assert type(network[0]) is Own


@pytest.mark.parametrize("p", [0.1, 0.8])
def test_share_scale_and_gradient(p, pynative):
    network = nn.SequentialCell(nn.Dropout(p=p))
    make_replayable(network)
    network.set_train(True)
    x = Tensor(np.random.default_rng(1).standard_normal((200, 300)).astype(np.float32))
    kept = []
    gradient = ops.grad(network)  # of the sum of its outputs
    for number in range(5):
        draw_masks(SEED, number, 0)
        out = network(x).asnumpy()
        draw_masks(SEED, number, 0)
        grad = gradient(x).asnumpy()
        mask = out != 0
        np.testing.assert_allclose(out[mask], x.asnumpy()[mask] / (1 - p), rtol=1e-5)
        np.testing.assert_allclose(grad, mask / (1 - p), rtol=1e-5)
        kept.append(mask)
    assert np.mean(kept) == pytest.approx(1 - p, abs=0.005)
    assert np.ptp(np.mean(kept, (0, 1))) < 0.25  # no column, and
    assert np.ptp(np.mean(kept, (0, 2))) < 0.25  # no row is preferred


@pytest.mark.parametrize(
    ("dropout", "shape", "p"),
    [
        (lambda: nn.Dropout1d(p=0.3), (64, 32, 5), 0.3),
        (lambda: nn.Dropout2d(p=0.3), (64, 32, 2, 3), 0.3),
        (lambda: nn.Dropout3d(p=0.3), (64, 32, 2, 3, 2), 0.3),
        (lambda: nn.Dropout(keep_prob=0.9), (64, 32, 5), 0.1),
    ],
)
def test_whole_channels_where_the_original_drops_them(dropout, shape, p):
    network = nn.SequentialCell(dropout())
    whole = type(network[0]) is not nn.Dropout
    make_replayable(network)
    network.set_train(True)
    kept = network(Tensor(np.ones(shape, np.float32))).asnumpy() > 0
    by_channel = kept.reshape(64, 32, -1)
    assert kept.mean() == pytest.approx(1 - p, abs=0.05)
    assert (by_channel.all(2) | ~by_channel.any(2)).all() == whole


def test_whole_rows_of_a_single_sample_where_dropout1d_drops_them():
    network = nn.SequentialCell(nn.Dropout1d(p=0.5))
    make_replayable(network)
    kept = network.set_train()(Tensor(np.ones((64, 5), np.float32))).asnumpy() > 0
    assert (kept.all(1) | ~kept.any(1)).all()
    assert 0 < kept.mean() < 1


X = Tensor(np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32))


def test_trials_of_a_step_see_the_masks_of_its_gradient(mode):
    network = DropoutNet()
    names = [p.name for p in network.get_parameters()]
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0, sigma=0.4, max_trials=8)
    assert isinstance(network.dropout, ReplayableDropout)
    assert [p.name for p in network.get_parameters()] == names
    results = []
    for number in range(6):
        results.append(step(X))
        network.set_train(True)
        draw_masks(ms.get_seed() or 0, number, 0)
        # The network still has the masks of this step, so it gives f at the accepted point.
        assert float(network(X).asnumpy()) == pytest.approx(results[-1].loss_after, rel=1e-5)
    step.line_search.sigma, step.line_search.max_trials = 1e9, 1
    before = state_bytes(network)
    rejected = [float(step(X).loss.asnumpy()) for _ in range(4)]
    assert state_bytes(network) == before
    assert len(set(rejected)) == 4  # same weights, same batch: only the masks differ
    assert sum(result.accepted for result in results) >= 4


def test_a_search_is_not_disturbed_by_another_one_on_its_network(pynative):
    losses = []
    for is_disturbed in (False, True):
        network = DropoutNet()
        step, other = (SubspaceTrainStep(network, basis_for(network, 2), alpha=0.0) for _ in range(2))
        step.line_search = other.line_search = RejectAll(1)
        losses.append([])
        for _ in range(3):
            losses[-1].append(float(step(X).loss))
            if is_disturbed:
                other(X)
    assert losses[0] == losses[1]
    assert len({*losses[0]}) == 3


def test_training_after_a_search_draws_new_masks_all_the_same(mode):
    network = DropoutNet()
    SubspaceTrainStep(network, basis_for(network, 2))(X)
    step = TrainStep(network, nn.SGD(network.trainable_params(), 0.0), micro_batch_size=2)
    assert len({float(step(X).loss) for _ in range(4)}) == 4
