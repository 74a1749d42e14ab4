"""The networks that a cooldown chooses from, each with its losses on ``val``: its end, and what it could begin with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.averaging.choice import Candidate, Choice, choose
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.states import VAL_LOSSES
from dimred.config import StageTwoConfig
from dimred.distributed.ranks import Ranks
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.evaluation.evaluator import Evaluator
from dimred.io.atomic import make_folder, remove_leftovers, retry
from dimred.io.stage_two_result import AVERAGE, START, ChoiceResult
from dimred.runs.run import Run
from dimred.stages.parent import StageOneRun
from dimred.vectors.parameters import from_arrays, to_arrays


class Candidates:
    """Checkpoints of the points of a stage 2, and the losses by which ``val`` chooses between two of a cooldown.

    A point is ``start``, ``average``, the number of an epoch, or ``final``. Its file is ``{prefix}-{point}.ckpt``; an
    epoch's is ``{prefix}-{epoch}_{steps_per_epoch}.ckpt``.

    Args:
        folder: folder of the checkpoints; made if missing.
        prefix, steps_per_epoch: parts of the files' names.
        ranks: all of them call the methods; rank 0 writes and reads.
        choice: gets the points that are measured.
    """

    def __init__(self, folder: Path, prefix: str, steps_per_epoch: int, ranks: Ranks, choice: Choice) -> None:
        self.choice = choice
        self._folder, self._prefix, self._steps_per_epoch, self._ranks = folder, prefix, steps_per_epoch, ranks
        if ranks.is_rank_zero and folder.is_dir():
            remove_leftovers(folder, is_only_writer=True)

    def path(self, point: str | int) -> Path:
        """Return the path of a point's checkpoint; a number is an epoch's."""
        name = f"{point}_{self._steps_per_epoch}" if isinstance(point, int) else point
        return self._folder / f"{self._prefix}-{name}.ckpt"

    def save(self, point: str | int, parameters: Sequence[Parameter]) -> None:
        """Write a point's checkpoint; all ranks call this, and rank 0 writes.

        Args:
            point: the point; a number is an epoch's.
            parameters: what to write.
        """
        arrays = to_arrays(parameters)

        def write() -> None:
            make_folder(self._folder)
            retry(lambda: write_checkpoint(self.path(point), arrays))

        self._ranks.run_on_rank_zero(write)

    def measure(self, point: str | int, evaluator: Evaluator) -> None:
        """Measure the network on ``val``, and add it to the choice.

        Args:
            point: the point that the network is at, and whose checkpoint was saved.
            evaluator: measures the network.
        """
        self.choice.measure(str(point), 1.0, evaluator.measure_val, self.path(point))

    def add_before(self, point: str, candidate: Candidate) -> None:
        """Add ``start`` or ``average`` to the choice, with the losses by which it was chosen before."""
        self.choice.add(point, candidate, self.path(point))

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return each candidate's losses for the state to resume from, except those that are not finite."""
        measured = [one for one in self.choice.candidates if np.isfinite(one.losses).all()]
        return {VAL_LOSSES + one.name: one.losses for one in measured}

    def state_values(self) -> dict[str, Any]:
        """Return JSON values for the same state.

        Returns:
            ``candidates``, each candidate's effective size, metric and file name by its name; and ``choosing_seconds``,
            the time spent on measuring them.
        """
        candidates = {
            one.name: (one.effective_size, one.metric, one.source.name)
            for one in self.choice.candidates
            if isinstance(one.source, Path)
        }
        return {"candidates": candidates, "choosing_seconds": self.choice.seconds}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the measurements from a state.

        Args:
            arrays: the state's arrays, with those of ``state_arrays``.
            values: the state's values, with those of ``state_values``.
        """
        measured = {name.removeprefix(VAL_LOSSES): arrays[name] for name in arrays if name.startswith(VAL_LOSSES)}
        self.choice.candidates = []
        for name, losses in measured.items():
            size, metric, file = values["candidates"][name]
            self.choice.candidates.append(Candidate(name, size, losses, metric, source=self._folder / file))
        self.choice.seconds = values["choosing_seconds"]
        self.choice.n_added = sum(one.name in (START, AVERAGE) for one in self.choice.candidates)

    def put_chosen(self, evaluator: Evaluator) -> ChoiceResult:
        """Choose among the candidates, and put the choice into the network; return the choice, to record.

        Args:
            evaluator: measures the network, which is set in place.
        """
        chosen = choose(self.choice.candidates)
        assert isinstance(chosen.source, Path)
        put_file(list(evaluator.network.get_parameters()), chosen.source, str(chosen.source), self._ranks)
        self.choice.log_choice("kept")
        return self.choice.result()


def put_best_average(run: Run[StageTwoConfig], parent: StageOneRun) -> tuple[Candidate, ChoiceResult]:
    """Put the best among the network's weights and the averages of stage 1's snapshots into the network.

    All ranks call this.

    Args:
        run: the run of stage 2, whose network is measured on ``val``.
        parent: the run of stage 1, which has the snapshots.

    Returns:
        The best candidate, named ``last`` if that is the network as it was; and the choice, to record.
    """
    choice, evaluator = new_choice(run), run.evaluator
    series = run.ranks.run_on_rank_zero(lambda: parent.snapshots() if parent.has_snapshots else None)
    averages = SnapshotAverages.of_series(series, evaluator.layout, run.ranks)
    last = evaluator.layout.flatten(to_arrays(evaluator.network.trainable_params()))
    best, weights = choose_average(averages, evaluator.measure_val_of, last, choice)
    evaluator.put(weights)
    choice.log_choice("average")
    return best, choice.result()


def new_choice(run: Run[StageTwoConfig]) -> Choice:
    """Return an empty choice that knows the cost of a measurement; 0 if the run has no ``val``."""
    passes_each = run.evaluator.passes_each if run.settings.uses_val else 0.0
    return Choice(passes_each=passes_each, metric=run.figures.metrics[0])


def put_file(parameters: Sequence[Parameter], file: Path, source: str, ranks: Ranks) -> None:
    """Set parameters on every rank to the values in a checkpoint that rank 0 reads; all ranks call this.

    Args:
        parameters: the parameters.
        file: the checkpoint.
        source: what it is, for errors.
        ranks: the ranks of the job.

    Raises:
        CheckpointError: the file can't be read, or does not fit; on the other ranks it is a DimredError.
    """
    ranks.run_on_rank_zero(lambda: from_arrays(parameters, read_checkpoint(file), source))
    ranks.broadcast(parameters)
