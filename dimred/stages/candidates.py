"""The networks that a cooldown chooses from by their losses on ``val``: its end, and the best one before it begins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.averaging.choice import Candidate, Choice, choose
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.states import VAL_LOSSES
from dimred.config import StageTwoConfig
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.io.stage_two_result import AVERAGE, START, ChoiceResult, StageTwoResult
from dimred.runs.run import Run
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles
from dimred.vectors.parameters import from_arrays, preserved, to_arrays


class Candidates:
    """The candidates of a cooldown: WEIGHTS or the best average of the snapshots, and the end.

    Args:
        run: the run of stage 2, whose network is measured on ``val``; all ranks call the methods.
        files: the checkpoints of the points.
    """

    def __init__(self, run: Run[StageTwoConfig], files: PointFiles) -> None:
        self._run, self._files, self._evaluator = run, files, run.evaluator
        self._choice = self._new_choice()

    def _new_choice(self) -> Choice:
        return Choice(passes_each=self._evaluator.passes_each, metric=self._run.figures.metrics[0])

    def add_best_before(self, parent: StageOneRun, result: StageTwoResult, parameters: Sequence[Parameter]) -> None:
        """Add the best among the network's weights and the averages of stage 1's snapshots; change no weights.

        Args:
            parent: the run of stage 1, which has the snapshots.
            result: gets this choice, and the figures of an average that is chosen.
            parameters: the parameters that the checkpoint of an average holds.
        """
        choice, evaluator, ranks = self._new_choice(), self._evaluator, self._run.ranks
        series = ranks.run_on_rank_zero(lambda: parent.snapshots() if parent.has_snapshots else None)
        averages = SnapshotAverages(series, evaluator.layout, ranks)
        with preserved(list(evaluator.network.get_parameters())):
            last = evaluator.layout.flatten(to_arrays(evaluator.network.trainable_params()))
            best, weights = choose_average(averages, evaluator.measure_val_of, last, choice)
            choice.log_choice("average")
            result.choices["average"] = choice.result()
            point = START if best.name == "last" else AVERAGE
            if point == AVERAGE:
                evaluator.put(weights)
                self._files.save(AVERAGE, parameters)
                result.put(AVERAGE, self._run.figures.of_average())
        self._choice.add(point, best, self._files.path(point))

    def measure(self, epoch: int) -> None:
        """Measure the network, and add it as the end of the epoch, whose checkpoint was saved."""
        self._choice.measure(str(epoch), 1.0, self._evaluator.measure_val, self._files.path(epoch))

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return each candidate's losses for the state to resume from, except those that are not finite."""
        measured = [one for one in self._choice.candidates if np.isfinite(one.losses).all()]
        return {VAL_LOSSES + one.name: one.losses for one in measured}

    def state_values(self) -> dict[str, Any]:
        """Return JSON values for the same state: name -> (effective size, metric, file) of each, and the seconds."""
        candidates = {
            one.name: (one.effective_size, one.metric, one.source.name)
            for one in self._choice.candidates
            if isinstance(one.source, Path)
        }
        return {"candidates": candidates, "choosing_seconds": self._choice.seconds}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the measurements from the arrays and values of a state."""
        choice = self._choice = self._new_choice()
        for name in (one.removeprefix(VAL_LOSSES) for one in arrays if one.startswith(VAL_LOSSES)):
            size, metric, file = values["candidates"][name]
            losses, source = arrays[VAL_LOSSES + name], self._files.folder / file
            choice.candidates.append(Candidate(name, size, losses, metric, source=source))
        choice.seconds = values["choosing_seconds"]
        choice.n_added = sum(one.name in (START, AVERAGE) for one in choice.candidates)

    def put_chosen(self) -> ChoiceResult:
        """Choose among the candidates, and put the choice into the network on every rank; return it, to record."""
        file, parameters = choose(self._choice.candidates).source, list(self._evaluator.network.get_parameters())
        assert isinstance(file, Path)
        arrays = self._run.ranks.run_on_rank_zero(lambda: read_checkpoint(file))
        if arrays is not None:
            from_arrays(parameters, arrays, str(file))
        self._run.ranks.broadcast(parameters)
        self._choice.log_choice("kept")
        return self._choice.result()
