"""The networks that stage 2 chooses from, each with its losses on ``val``; among them the best average of snapshots."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.averaging.choice import Candidate, Choice, choose
from dimred.averaging.windows import Window
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.states import VAL_LOSSES
from dimred.config import StageTwoConfig
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError
from dimred.evaluation.averages import SnapshotAverages, better_average, choose_average
from dimred.evaluation.evaluator import Evaluator
from dimred.io.atomic import make_folder, remove_leftovers, retry
from dimred.io.stage_two_result import AVERAGE, ChoiceResult
from dimred.runs.run import Run
from dimred.stages.parent import StageOneRun
from dimred.subspace.basis import SubspaceBasis
from dimred.vectors.parameters import from_arrays, preserved, to_arrays


class Candidates:
    """Checkpoints of the points of a stage 2, and the losses that ``val`` chooses by.

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
            remove_leftovers(folder)

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

    def measure(self, point: str | int, effective_size: float, evaluator: Evaluator) -> None:
        """Measure the network on ``val``, and add it to the choice.

        Args:
            point: the point that the network is at, and whose checkpoint was saved.
            effective_size: how many equal snapshots the network is worth as an average; 1 for weights of one step.
            evaluator: measures the network.
        """
        self.choice.measure(str(point), effective_size, evaluator.measure_val, self.path(point))

    def add_average(self, candidate: Candidate) -> None:
        """Add the best average of the snapshots to the choice, with the losses by which it was found before."""
        self.choice.add(AVERAGE, candidate, self.path(AVERAGE))

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
            values: the state's values, with those of ``state_values``; a state of an early version has no seconds.
        """
        measured = {name.removeprefix(VAL_LOSSES): arrays[name] for name in arrays if name.startswith(VAL_LOSSES)}
        self.choice.candidates = []
        for name, losses in measured.items():
            size, metric, file = values["candidates"][name]
            self.choice.candidates.append(Candidate(name, size, losses, metric, source=self._folder / file))
        self.choice.seconds = values.get("choosing_seconds", 0.0)
        self.choice.n_added = sum(one.name == AVERAGE for one in self.choice.candidates)

    def put_chosen(self, evaluator: Evaluator, epochs: Sequence[int]) -> ChoiceResult:
        """Choose among the candidates and the mean of the epochs, and put the choice into the network.

        Args:
            evaluator: measures the network, which is set in place.
            epochs: the epochs of this run; the folder may hold others, which a resumed run has not made again.

        Returns:
            The choice, to record.
        """
        files = {epoch: self.path(epoch) for epoch in epochs} if self._ranks.is_rank_zero else {}
        averages = SnapshotAverages(files, evaluator.layout, self._ranks)
        if len(epochs) > 1:
            name = f"mean of epochs {epochs[0]} to {epochs[-1]}"
            averages.measure(Window(0, len(epochs)), self.choice, evaluator.measure_val_of, name)
        chosen = choose(self.choice.candidates)
        if isinstance(chosen.source, Window):
            evaluator.put(averages.of(chosen.source))
        elif chosen.source is not None:
            put_file(list(evaluator.network.get_parameters()), chosen.source, str(chosen.source), self._ranks)
        self.choice.tell("kept")
        return self.choice.result()


class BestAverage:
    """A search for the best average of stage 1's snapshots on ``val``; all ranks call its methods.

    Args:
        run: the run of stage 2, whose network is measured.
        parent: the run of stage 1, which has the snapshots.
    """

    def __init__(self, run: Run[StageTwoConfig], parent: StageOneRun) -> None:
        self._run, self._parent = run, parent

    @property
    def has_snapshots(self) -> bool:
        """Return whether rank 0 has snapshots; every rank gets the same answer."""
        ranks = self._run.ranks
        return ranks.any(bool(ranks.run_on_rank_zero(lambda: self._parent.has_snapshots)))

    def new_choice(self) -> Choice:
        """Return an empty choice that knows the cost of a measurement."""
        run = self._run
        passes_each = run.evaluator.passes_each if "val" in run.task.images else 0.0
        return Choice(passes_each=passes_each, metric=run.figures.metrics[0])

    def put(self, what: str) -> tuple[Candidate, ChoiceResult]:
        """Put the best among the network's weights and the averages of the snapshots into the network.

        Args:
            what: what the choice is for, in the log.

        Returns:
            The best candidate, named ``last`` if that is the network as it was; and the choice, to record.
        """
        choice, evaluator = self.new_choice(), self._run.evaluator
        last = evaluator.layout.flatten(to_arrays(evaluator.network.trainable_params()))
        best, weights = choose_average(self._averages(), evaluator.measure_val_of, last, choice)
        evaluator.put(weights)
        choice.tell(what)
        return best, choice.result()

    def save_if_better(self, candidates: Candidates) -> tuple[ChoiceResult | None, str]:
        """Look for an average that is better than the network, and save the best one; change no weights.

        Args:
            candidates: where it is saved.

        Returns:
            The choice to record, None if no loss is finite; and a line for the log, "" if no average is better.
        """
        run, choice, evaluator = self._run, self.new_choice(), self._run.evaluator
        parameters = list(evaluator.network.get_parameters())
        with preserved(parameters):
            network = choice.measure("final", 1.0, evaluator.measure_val)
            averages = self._averages()
            best = better_average(averages, evaluator.measure_val_of, choice)
            if not any(math.isfinite(one.loss) for one in choice.candidates):
                return None, ""
            choice.tell("the last network and averages of the snapshots")
            if best is None:
                return choice.result(), ""
            evaluator.put(averages.of_candidate(best))
            candidates.save(AVERAGE, parameters)
        metric, losses = run.figures.metrics[0], f"{best.loss:.4f}, against {network.loss:.4f}"
        has_cooldown = run.settings.cooldown is not None
        instead = "--set keep_best=true chooses" if has_cooldown else "--set start=best begins stage 2 there"
        return choice.result(), (
            f"the best average of the snapshots is better on 'val' than this network: loss {losses}; {metric.name} "
            f"{metric.text(best.metric)}, against {metric.text(network.metric)}. To take it, use "
            f"{candidates.path(AVERAGE)}; in a new run, {instead}"
        )

    def _averages(self) -> SnapshotAverages:
        parent, ranks = self._parent, self._run.ranks
        series = ranks.run_on_rank_zero(lambda: parent.snapshots() if parent.has_snapshots else None)
        return SnapshotAverages.of_series(series, self._run.evaluator.layout, ranks)


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


def mean_of(basis: SubspaceBasis) -> np.ndarray:
    """Return the mean of a basis' snapshots, (M,), to start from.

    Raises:
        ConfigError: its file has none.
    """
    if basis.mean is None:
        raise ConfigError("start is 'mean', but the basis file has no mean of the snapshots beside it; use start=last")
    return basis.mean
