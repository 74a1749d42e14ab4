"""Means of any score, against NumPy: what counts, what is left out, several inputs."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, dataset, nn

from dimred.errors import ConfigError, DataError
from dimred.evaluation.scores import cross_entropy, sums_and_counts
from tests.helpers.commands import REPOSITORY
from tests.helpers.scoring import mean_score, sample_scores

N, T = 7, 5
RNG = np.random.default_rng(4)
OUTPUTS, LABELS = RNG.normal(size=(2, N, T)).astype(np.float32)


def batches(*columns: np.ndarray, size: int = 3) -> dataset.Dataset:
    return dataset.NumpySlicesDataset(columns, shuffle=False).batch(size)


@pytest.mark.parametrize("axes", [(N, T), (N,)])
def test_the_loss_of_the_samples_is_in_the_mean_the_loss_that_is_trained_by(axes: tuple[int, ...]) -> None:
    part = (slice(None), slice(None)) if axes == (N, T) else (slice(None), 0)
    outputs, labels = OUTPUTS[part], LABELS[part]
    mean = float(nn.MSELoss(reduction="mean")(Tensor(outputs), Tensor(labels)).asnumpy())
    of_samples = sample_scores(nn.Identity(), nn.MSELoss(reduction="none"), batches(outputs, labels))
    by_sample = ((outputs - labels) ** 2).reshape(N, -1).mean(1)
    np.testing.assert_allclose(of_samples, by_sample, rtol=1e-5)
    assert of_samples.mean() == pytest.approx(mean, rel=1e-6)


def test_what_is_not_counted_is_left_out_and_what_is_not_a_number_is_not_hidden() -> None:
    counted = RNG.random((N, T)) < 0.6
    values = np.where(counted, np.abs(OUTPUTS - LABELS), np.nan)

    def score(outputs: Tensor, labels: Tensor) -> Any:
        of_batch = np.isin(LABELS, labels.asnumpy()).all(1)
        return values[of_batch], counted[of_batch]

    assert mean_score(nn.Identity(), score, batches(OUTPUTS, LABELS)) == pytest.approx(np.nanmean(values))
    counted[1, 1], values[1, 1] = True, np.nan
    assert np.isnan(mean_score(nn.Identity(), score, batches(OUTPUTS, LABELS)))


def distances(outputs: Tensor, labels: Tensor) -> Tensor:
    return abs(outputs - labels)


@pytest.mark.parametrize(
    ("score", "outputs", "said"),
    [
        (nn.MSELoss(), OUTPUTS[:, :1], "it must give one for each item"),
        (
            distances,
            OUTPUTS[:, :1],
            r"the shape \(3, 3\), more numbers than .* \(3, 1\) and \(3,\); give them the same",
        ),
        (lambda outputs, labels: outputs.reshape(-1), OUTPUTS, "its first axis must be the 3 samples"),
    ],
)
def test_what_is_not_one_value_for_each_item_is_refused(score: Any, outputs: np.ndarray, said: str) -> None:
    """A mean over a batch would count the samples of a small last batch more; n x n pairs are no errors at all."""
    with pytest.raises(ConfigError, match=said):
        mean_score(nn.Identity(), score, batches(outputs, LABELS[:, 0]))


@pytest.mark.parametrize("score", [mean_score, sample_scores])
def test_a_split_without_a_label_that_counts_is_refused(score: Any) -> None:
    logits, ignored = RNG.normal(size=(N, 4)).astype(np.float32), np.full(N, -100, np.int32)
    with pytest.raises(DataError, match="not one item of the split counts"):
        score(nn.Identity(), cross_entropy, batches(logits, ignored))


def test_the_last_column_is_the_label_of_several_inputs() -> None:
    class Sum(nn.Cell):
        def construct(self, first: Tensor, second: Tensor) -> Tensor:
            return first + second

    network = Sum().set_train(True)
    found = mean_score(network, nn.L1Loss(reduction="none"), batches(OUTPUTS, 2 * OUTPUTS, LABELS))
    assert found == pytest.approx(np.abs(3 * OUTPUTS - LABELS).mean())
    assert network.training


def test_every_cell_is_put_back_into_its_own_mode() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    network = nn.SequentialCell(nn.Dropout(p=0.5), nn.SequentialCell(nn.Dropout(p=0.5), nn.Identity()))
    network.set_train(True)
    network[1].set_train(False)
    modes = [cell.training for _, cell in network.cells_and_names()]
    assert len(set(modes)) == 2
    found = mean_score(network, nn.L1Loss(reduction="none"), batches(OUTPUTS, LABELS))
    assert found == pytest.approx(np.abs(OUTPUTS - LABELS).mean())
    assert [cell.training for _, cell in network.cells_and_names()] == modes
    assert (network(Tensor(OUTPUTS)).asnumpy() == 0).any()  # a graph that was compiled for measuring is not used again


def test_scores_may_be_of_a_type_that_numpy_does_not_know() -> None:
    labels = Tensor(LABELS)
    sums, counts = sums_and_counts(Tensor(OUTPUTS).astype(ms.bfloat16), labels, labels)
    np.testing.assert_allclose(sums, OUTPUTS.sum(1), atol=0.1)
    assert counts.tolist() == [T] * N


def test_the_metric_of_the_tutorial_is_a_score() -> None:
    text = (REPOSITORY / "pipelines" / "TUTORIAL.md").read_text(encoding="utf-8")
    made: dict[str, Any] = {}
    exec(text.partition("## Not a classifier?")[2].partition("```python\n")[2].partition("```")[0], made)
    found = mean_score(nn.Identity(), made["absolute_error"](), batches(OUTPUTS, LABELS))
    assert found == pytest.approx(np.abs(OUTPUTS - LABELS).mean())
