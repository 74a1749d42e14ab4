"""Ask the card of this machine, and fail where an answer is wrong; see README.md."""

import os
from pathlib import Path

import pytest

from tests.gpu.card import FAST, RIGHT, Card
from tests.gpu.runs import RUNS


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    """Ask everything once; the answers are in DIMRED_GPU_ANSWERS, or in a temporary folder."""
    folder = Path(os.environ.get("DIMRED_GPU_ANSWERS") or tmp_path_factory.mktemp("card"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES")  # which tests/conftest.py hides for the others
        card = Card(folder, float(os.environ.get("DIMRED_GPU_MINUTES", "6")))
        card.ask()
    return card


@pytest.mark.gpu
@pytest.mark.parametrize("question", [*RIGHT, *RUNS, *FAST])
def test_the_answer_is_right(question: str, card: Card) -> None:
    assert [text for text in card.wrong if text.startswith(f"{question}:")] == []


@pytest.mark.slow
def test_the_questions_themselves_are_right_on_the_cpu(tmp_path: Path) -> None:
    """Two processes on the CPU give the same answers, so that a wrong one on a card is the card's."""
    card = Card(tmp_path, minutes=60, is_small=True, device="CPU")
    card.ask([*RIGHT, *RUNS, *FAST])
    assert card.wrong == []
