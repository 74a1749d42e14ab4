"""Micro-batches are weighted by the labels that count, so that a step is that of the whole batch."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.step import TrainStep
from tests.helpers.networks import basis_for, set_weights, weight_vector
from tests.helpers.problems import tensors
from tests.oracles.mixing import mean_cross_entropy
from tests.oracles.train_step import cross_entropy

IGNORED, ROWS, CLASSES, FEATURES = -100, 6, 4, 3
CLASS_WEIGHTS = np.array([0.5, 2.0, 0.0, 1.0])
LABELS = np.array([0, IGNORED, IGNORED, IGNORED, 1, 3])  # of three micro-batches of two rows
PIXELS = np.where(np.arange(ROWS * 4).reshape(ROWS, 2, 2) % 5 > 1, 1, LABELS[:, None, None])
PIXELS[2:4] = IGNORED
PROBABILITIES = np.random.default_rng(3).dirichlet(np.ones(CLASSES), ROWS).astype(np.float32)
LABELS_THAT_COUNT = np.array([0, 3, 2, 1, 1, 3], np.int32)


class SumAndCount(nn.CrossEntropyLoss):
    """A loss of one's own, which inherits from one of MindSpore's."""

    def construct(self, logits, labels):
        values = ops.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return values.sum(), ops.not_equal(labels, IGNORED).astype(ms.int32).sum()


class OwnMean(nn.Cell):
    """A loss of one's own, whose items dimred can't count."""

    def construct(self, logits, labels):
        return ops.cross_entropy(logits, labels)


class LogSoftmaxNLL(nn.Cell):
    """A loss that holds one of MindSpore's."""

    def __init__(self, **options):
        super().__init__()
        self.nll = nn.NLLLoss(**options)

    def construct(self, logits, labels):
        return self.nll(ops.log_softmax(logits, 1), labels)


CASES = {
    "ignored": ({}, LABELS),
    "class weights": ({"class_weights": CLASS_WEIGHTS}, np.array([0, 2, 2, 2, 1, 3])),
    "all of these, smoothed": ({"class_weights": CLASS_WEIGHTS, "label_smoothing": 0.1}, LABELS),
    "padding is class 0": ({"ignore_index": 0}, np.array([1, 2, 0, 0, 0, 3])),
    "pixels": ({}, PIXELS),
    "a loss of one's own": ({"loss": SumAndCount}, LABELS),
    "within a loss of one's own": ({"loss": LogSoftmaxNLL}, LABELS),
}


def problem(given, labels):
    """Make a classifier with its loss, a batch for it, and the twin: weights -> loss and gradient of the batch."""
    given = dict(given)
    kind = given.pop("loss", nn.CrossEntropyLoss)
    twin_options = {
        "ignored": given.get("ignore_index", IGNORED),
        "class_weights": given.pop("class_weights", None),
        "smoothing": given.get("label_smoothing", 0.0),
    }
    if twin_options["class_weights"] is not None:
        given["weight"] = Tensor(twin_options["class_weights"], ms.float32)
    x = np.random.default_rng(1).standard_normal((ROWS, FEATURES, *labels.shape[1:])).astype(np.float32)
    layer = nn.Dense(FEATURES, CLASSES, has_bias=False) if labels.ndim == 1 else nn.Conv2d(FEATURES, CLASSES, 1)
    network = nn.WithLossCell(layer, kind(**given))
    set_weights(network, np.random.default_rng(2).standard_normal(CLASSES * FEATURES))

    def twin(weights):
        loss, gradient, _ = cross_entropy(weights.reshape(CLASSES, FEATURES), x, labels, **twin_options)
        return loss, gradient.ravel()

    return network, (x, labels.astype(np.int32)), twin


@pytest.mark.parametrize(
    ("case", "is_graph"),
    [
        *((case, False) for case in CASES),
        ("ignored", True),
        pytest.param("pixels", True, marks=pytest.mark.slow),
    ],
)
def test_a_step_in_micro_batches_is_that_of_the_whole_batch(case, is_graph, pynative):
    ms.set_context(mode=ms.GRAPH_MODE if is_graph else ms.PYNATIVE_MODE)
    network, batch, twin = problem(*CASES[case])
    before = weight_vector(network)
    step = TrainStep(network, nn.SGD(network.trainable_params(), 1.0), micro_batch_size=2)
    result = step(*tensors(batch))
    loss, gradient = twin(before)
    assert float(result.loss) == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(before - weight_vector(network), gradient, atol=1e-6)
    assert not [one.name for one in step.get_parameters() if "n_items" in one.name]


@pytest.mark.parametrize(("case", "is_graph"), [("ignored", True), ("a loss of one's own", False)])
def test_the_search_s_trials_see_the_loss_of_the_whole_batch(case, is_graph, pynative):
    ms.set_context(mode=ms.GRAPH_MODE if is_graph else ms.PYNATIVE_MODE)
    network, batch, twin = problem(*CASES[case])
    step = SubspaceTrainStep(network, basis_for(network), alpha=0.0, sigma=0.1, micro_batch_size=2)
    before = weight_vector(network)
    result = step(*tensors(batch))
    loss, gradient = twin(before)
    assert float(result.loss) == pytest.approx(loss, rel=1e-6)
    assert result.grad_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
    assert result.loss_after == pytest.approx(twin(weight_vector(network))[0], rel=1e-6)
    assert result.loss_after < result.loss


def test_a_loss_scale_scales_the_mean_and_drops_an_overflow_where_no_label_counts(pynative):
    network, (x, labels), twin = problem(*CASES["pixels"])
    scale = DynamicLossScale(1024.0)
    step = TrainStep(
        network,
        nn.SGD(network.trainable_params(), 1.0),
        micro_batch_size=2,
        parts=[scale, EMA(network, 0.5)],
    )
    before = weight_vector(network)
    step(*tensors((x, labels)))
    after = weight_vector(network)
    np.testing.assert_allclose(before - after, twin(before)[1], atol=1e-6)
    assert int(step.ema.n_updates) == 1
    x[2] = np.inf  # of a micro-batch without a label that counts
    assert not step(*tensors((x, labels))).applied
    assert (int(scale.n_overflows), int(step.ema.n_updates)) == (1, 1)
    assert weight_vector(network).tobytes() == after.tobytes()


@pytest.mark.parametrize("labels", [LABELS_THAT_COUNT, PROBABILITIES], ids=["classes", "probabilities"])
def test_where_every_label_counts_the_weights_are_those_of_a_mean_over_rows_to_the_last_byte(labels, pynative):
    ends = []
    for loss in (nn.CrossEntropyLoss, OwnMean):
        network, (x, _), _ = problem({"loss": loss}, LABELS)
        step = TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), micro_batch_size=1)
        for _ in range(2):
            result = step(*tensors((x, labels)))
        ends.append((float(result.loss), weight_vector(network).tobytes()))
    assert ends[0] == ends[1]


class LossAndAccuracy(nn.Cell):
    """Two numbers, of which the second is no count."""

    def construct(self, logits, labels):
        return ops.cross_entropy(logits, labels), (logits.argmax(1) == labels).astype(ms.float32).mean()


def test_an_accuracy_is_not_taken_for_a_count(pynative):
    network, batch, _ = problem({"loss": LossAndAccuracy}, LABELS)
    step = TrainStep(network, nn.SGD(network.trainable_params(), 1.0))
    with pytest.raises(ConfigError, match=r"Float32 \(\) and Float32 \(\) as its loss; .* the count int32 or int64"):
        step(*tensors(batch))


class Sum(nn.Cell):
    def __init__(self, one, other):
        super().__init__(auto_prefix=False)
        self.one, self.other = one, other

    def construct(self, x, labels):
        return self.one(x, labels) + self.other(x, labels)


def test_losses_that_earlier_steps_let_count_are_counted_together(pynative):
    """Each of two halves has a step of its own first, and then both share one."""
    network, batch, twin = problem({}, LABELS)
    halves = [network, nn.WithLossCell(network.backbone_network, nn.CrossEntropyLoss())]
    weights = network.trainable_params()
    for half in (*halves, halves[0]):
        TrainStep(half, nn.SGD(weights), micro_batch_size=2)
    before = weight_vector(network)
    TrainStep(Sum(*halves), nn.SGD(weights, 1.0), micro_batch_size=2)(*tensors(batch))
    np.testing.assert_allclose(before - weight_vector(network), 2 * twin(before)[1], atol=2e-6)


def test_a_batch_without_a_label_that_counts_has_no_mean(pynative):
    network, (x, labels), _ = problem({}, np.full(ROWS, IGNORED))
    step = TrainStep(network, nn.SGD(network.trainable_params(), 1.0), micro_batch_size=2, parts=[StaticLossScale(1.0)])
    before = weight_vector(network)
    result = step(*tensors((x, labels)))
    assert np.isnan(float(result.loss))
    assert not result.applied
    assert weight_vector(network).tobytes() == before.tobytes()


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_labels_that_are_probabilities_are_smoothed_and_averaged_as_the_equation_says(micro_batch_size, pynative):
    network, (x, _), _ = problem({"label_smoothing": 0.1}, LABELS)
    before = weight_vector(network)
    step = TrainStep(network, nn.SGD(network.trainable_params(), 1.0), micro_batch_size=micro_batch_size)
    result = step(*tensors((x, PROBABILITIES)))
    logits = x @ before.reshape(CLASSES, FEATURES).T
    loss, of_logits = mean_cross_entropy(logits, PROBABILITIES, smoothing=0.1)
    assert float(result.loss) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(before - weight_vector(network), (of_logits.T @ x).ravel(), atol=1e-6)
