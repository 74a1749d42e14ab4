"""The task of the source code: nothing is read twice, no byte sees a later one, and it learns."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from dimred.builders import build_data, build_network, build_scores, build_train_step
from dimred.config import StageOneConfig, load_config
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from tests.benchmarks import source_code
from tests.benchmarks.source_code import CONTEXT, dataset
from tests.helpers.scoring import mean_score

HERE = Path(__file__).parent
ONE = load_config(StageOneConfig, HERE / "source_code_1.yaml", ["data.batch_size=8"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 files, each a text of its own, and one that is a test."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "test").mkdir()
    for number in range(60):
        (folder / f"{number}.py").write_text("".join(f"def f_{number}_{line}(): pass\n" for line in range(100)))
    (folder / "test" / "not_read.py").write_text("?" * 9000)
    return folder


def read(library: Path, split: str, epoch: int | None) -> list[bytes]:
    return [bytes(window.astype(np.uint8)) for window, _ in dataset(library, split, None, epoch)]


def test_epochs_and_searches_read_other_windows_and_no_file_is_in_two_splits(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_code, "EPOCH", 100)
    epochs = [*range(1, 6), *range(STAGE_2_EPOCHS_FROM + 1, STAGE_2_EPOCHS_FROM + 4)]
    windows = [read(library, "train", epoch) for epoch in epochs]
    assert [len(of_epoch) for of_epoch in windows] == [100] * len(epochs)
    everything = [window for of_epoch in windows for window in of_epoch]
    assert len(set(everything)) == len(everything)
    assert read(library, "train", None) == windows[0]
    split_of = {
        int(name): split
        for split in ("train", "val", "test")
        for window in [*read(library, split, None), *(everything if split == "train" else ())]
        for name in {part.split(b"_")[0] for part in window.split(b"f_")[1:] if part.count(b"_")}
    }
    for split in ("val", "test"):
        own = {name for name, where in split_of.items() if where == split}
        assert own
        assert not own & {name for name, where in split_of.items() if where != split}


def test_it_is_causal_and_learns(library: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    network, images = build_network(ONE), build_data(ONE.data, library, "train")
    assert 380_000 < sum(weight.size for weight in network.trainable_params()) < 400_000
    text, labels = next(images.evaluation().create_tuple_iterator(num_epochs=1))
    other = text.asnumpy().copy()
    other[:, 90] += 1
    network.set_train(False)
    one, two = (network(given).asnumpy() for given in (text, Tensor(other)))
    assert one.shape == (8, 256, CONTEXT)
    np.testing.assert_array_equal(one[:, :, :90], two[:, :, :90])
    assert np.abs(one - two)[:, :, 90:].max(axis=(0, 1)).min() > 0
    metric = build_scores(ONE).metric

    class Batch:
        def create_tuple_iterator(self, num_epochs: int) -> list[tuple[Tensor, Tensor]]:
            return [(text, labels)]

    before = mean_score(network, metric, Batch())
    assert before == pytest.approx(np.log(256), abs=0.5)
    step = build_train_step(
        ONE.model_copy(update={"schedule": ONE.schedule.model_copy(update={"warmup_epochs": 0})}), network, 4
    )
    losses = [float(step(text, labels).loss) for _ in range(5)]
    assert losses[0] == pytest.approx(before, rel=1e-5)
    assert mean_score(network, metric, Batch()) < before - 1
