"""The choice among candidates: the lowest loss wins, and the log and the record say so."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dimred.averaging.choice import Candidate, Choice, behind, choose
from dimred.errors import FaultError
from dimred.run_files.metric import ACCURACY, Measurement

HARD = np.random.default_rng(0).exponential(1.0, 400)  # how hard each sample is, for every candidate
MEASURED = HARD.astype(np.float32)  # as an Evaluator returns the losses
AGAIN = np.where(np.arange(400) % 3, MEASURED, np.nextafter(MEASURED, np.float32(np.inf)))  # in another last digit
NOISE = np.tile([0.2, -0.2], 200)  # standard error 0.01


def test_the_standard_error_is_that_of_the_paired_difference() -> None:
    rng = np.random.default_rng(1)
    one, other = HARD + rng.normal(0.01, 0.1, 400), HARD
    result = behind(Candidate("one", 1, one), Candidate("other", 1, other))
    assert result.loss == pytest.approx(np.mean(one - other))
    assert result.standard_error == pytest.approx(stats.sem(one - other))
    assert result.standard_error < stats.sem(one) / 5  # what is hard for both cancels


def test_two_samples_are_compared_in_pairs_too() -> None:
    """The first candidate alone has a standard error of 2."""
    assert behind(Candidate("one", 1, np.array([1.0, 5.0])), Candidate("other", 1, np.array([0.0, 3.0]))) == (1.5, 0.5)


def test_losses_on_both_sides_of_a_power_of_two_are_equal_only_by_the_finer_rounding() -> None:
    """Below 1 the numbers of a type are twice as dense as above."""
    one = np.ones(4, np.float32)
    candidates = [Candidate("lowest", 1, np.nextafter(one, np.float32(0))), Candidate("worse everywhere", 9, one)]
    assert choose(candidates).name == "lowest"


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ([("larger, behind by noise", 8, HARD + 0.009 + NOISE)], "lowest"),
        ([("lower", 1, HARD - 0.001 + NOISE)], "lower"),
        ([("as good and larger", 4, AGAIN)], "as good and larger"),
        ([("as good, not larger", 2, HARD.copy())], "lowest"),
        ([("not a number", 50, np.where(np.arange(400) == 7, np.nan, HARD - 1))], "lowest"),
        ([("infinite", 50, np.where(np.arange(400) == 7, np.inf, HARD - 1))], "lowest"),
    ],
    ids=lambda case: case if isinstance(case, str) else case[0][0],
)
def test_the_lowest_loss_is_chosen_and_of_equal_ones_the_largest_average(others: list, name: str) -> None:
    candidates = [Candidate("lowest", 2, MEASURED), *(Candidate(*other) for other in others)]
    assert choose(candidates).name == name


@pytest.mark.parametrize("offset", [0, 1e4, -1e4])
def test_an_offset_of_the_loss_does_not_make_worse_networks_equal(offset: float) -> None:
    """Such as the constant of a likelihood, also a negative one: what decides is the difference."""
    lowest = (HARD + offset).astype(np.float32)
    next_numbers = np.nextafter(lowest, np.float32(np.inf))
    for name, losses in {
        "worse on every sample": (HARD + offset + 0.005).astype(np.float32),
        "worse by the last digit of every sample": next_numbers,
    }.items():
        assert choose([Candidate("lowest", 1, lowest), Candidate(name, 9, losses)]).name == "lowest"
    some = np.where(np.arange(400) % 3, lowest, next_numbers)
    assert choose([Candidate("lowest", 1, lowest), Candidate("equal", 9, some)]).name == "equal"
    gap = behind(Candidate("worse", 1, (HARD + offset + 0.005).astype(np.float32)), Candidate("lowest", 1, lowest))
    assert gap.loss > 2 * gap.standard_error


@pytest.mark.parametrize("offset", [0, 1e6, -1e6])
def test_single_numbers_are_equal_only_if_they_are_the_same(offset: float) -> None:
    """As the scores of a user's metric; their type is float64."""
    best = Candidate("best", 1, np.array([offset + 0.5]))
    for worse in (offset + 1.42, np.nextafter(offset + 0.5, np.inf)):
        assert choose([best, Candidate("worse", 9, np.array([worse]))]).name == "best"
    assert choose([best, Candidate("larger", 9, best.losses)]).name == "larger"


def test_where_only_means_are_known_their_errors_are_added_in_squares() -> None:
    one, other = (Candidate(name, 1, np.array([loss]), error=error) for name, loss, error in [("a", 5, 3), ("b", 1, 4)])
    assert behind(one, other) == (4, 5)
    assert choose([other, one]).name == "b"


def test_without_a_finite_loss_there_is_no_choice() -> None:
    with pytest.raises(FaultError, match="no candidate has a finite loss on the held-out samples"):
        choose([Candidate("broken", 1, np.full(3, np.nan))])


def choice_of(*candidates: tuple[str, float, np.ndarray]) -> Choice:
    result = Choice(passes_each=0.5)
    for name, effective_size, losses in candidates:
        result.measure(name, effective_size, partial(Measurement, losses))
    return result


def test_one_sentence_says_which_candidate_is_better_and_by_how_much(caplog: pytest.LogCaptureFixture) -> None:
    for noise, verdict in ((0 * NOISE, ""), (2 * NOISE, ", too little to tell the two apart")):
        choice = Choice(metric=ACCURACY)
        for name, losses, value in (("last", HARD + 1, 0.5), ("average", HARD + 0.01 + noise, 0.8), ("2", HARD, 0.9)):
            choice.measure(name, 1, partial(Measurement, losses, value))
        caplog.clear()
        choice.log_choice("kept")
        assert caplog.messages == [
            f"kept: epoch 2, with the lowest loss on 'val', {HARD.mean():.4f} (accuracy 90.00 %); "
            f"the next of 3, the best average of the snapshots, has 0.0100 more (accuracy 80.00 %){verdict}"
        ]


@pytest.mark.parametrize(("loss", "is_clear"), [(1.5, False), (2.0, False), (2.5, True)])
def test_more_than_two_standard_errors_tell_two_networks_apart(
    loss: float, is_clear: bool, caplog: pytest.LogCaptureFixture
) -> None:
    worse = np.array([loss - 1, loss + 1])  # with a standard error of exactly 1
    choice_of(("best", 1, np.zeros(2)), ("worse", 1, worse)).log_choice("kept")
    assert caplog.messages[0].endswith("too little to tell the two apart") is not is_clear


def test_a_choice_returns_what_it_measured_and_counts_the_seconds() -> None:
    choice = choice_of(("one", 1, HARD))
    assert choice.measure("two", 2, partial(Measurement, HARD)) is choice.candidates[1]
    assert 0 < choice.seconds < 60


def test_the_record_has_all_candidates_and_their_cost() -> None:
    choice = choice_of(*((f"w{width}", width, HARD + width / 100) for width in range(1, 9)))
    result = choice.result()
    assert [record["name"] for record in result.candidates] == [f"w{width}" for width in range(1, 9)]
    assert (result.name, result.n_measured, result.forward_passes) == ("w1", 8, 4.0)
    choice.add("average", choice.candidates[0], Path("average.ckpt"))  # another choice has measured it
    assert choice.result().n_measured == 8


def test_networks_without_a_finite_loss_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Such as the averages with a snapshot that has a number that is not finite, which are passed over."""
    choice_of(("w8", 8, HARD * np.nan), ("w1", 1, HARD), ("2", 1, HARD * np.inf)).log_choice("start")
    assert "of 3 networks, 2 have no finite loss: w8, epoch 2" in caplog.messages
    caplog.clear()
    choice_of(("w1", 1, HARD)).log_choice("start")
    assert "finite" not in caplog.text
