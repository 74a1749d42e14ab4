"""The greedy soup against a plain loop."""

import math

import numpy as np
import pytest

from dimred.averaging.soup import greedy_soup
from tests.oracles import merge as oracle


@pytest.mark.parametrize("seed", range(5))
def test_the_soup_is_that_of_the_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, target = rng.standard_normal((7, 4)), 0.3 * rng.standard_normal(4)

    def score(vector: np.ndarray) -> float:
        return -round(float(np.linalg.norm(vector - target)), 1)  # rounded, so that some are equal

    asked = []

    def of_coefficients(coefficients: tuple[float, ...]) -> float:
        asked.append(coefficients)
        return score(np.array(coefficients) @ vectors / sum(coefficients))

    members, reached = oracle.greedy_soup(vectors, score)
    found, best = greedy_soup(7, of_coefficients)
    assert set(np.flatnonzero(found)) == set(members)
    assert best == reached
    assert len(asked) == 2 * 7 - 1


def test_a_soup_leaves_out_what_failed() -> None:
    found, _ = greedy_soup(3, lambda coefficients: math.nan if coefficients[1] else 1.0)
    assert found == (1.0, 0.0, 1.0)
