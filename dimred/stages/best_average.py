"""The best average of stage 1's snapshots, for a stage 2: as its start, as a candidate, or beside what it keeps."""

import math

from dimred.averaging.choice import Candidate, Choice
from dimred.config import StageTwoConfig
from dimred.evaluation.averages import SnapshotAverages, better_average, choose_average
from dimred.io.stage_two_result import ChoiceResult
from dimred.runs.run import Run
from dimred.stages.parent import StageOneRun
from dimred.vectors.parameters import to_arrays


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

    def put_if_better(self) -> tuple[Candidate, Candidate | None, ChoiceResult | None]:
        """Look for an average that is better than the network, and put the best one into it.

        If none is better, the network keeps the weights that were measured last: the caller restores its own.

        Returns:
            The candidate that is the network as it was; the best average, None if none is better; and the choice to
            record, None if no loss is finite.
        """
        choice, evaluator = self.new_choice(), self._run.evaluator
        network = choice.measure("final", 1.0, evaluator.measure_val)
        averages = self._averages()
        best = better_average(averages, evaluator.measure_val_of, choice)
        if not any(math.isfinite(one.loss) for one in choice.candidates):
            return network, None, None
        if best is not None:
            evaluator.put(averages.of_candidate(best))
        choice.tell("the last network and averages of the snapshots")
        return network, best, choice.result()

    def _averages(self) -> SnapshotAverages:
        parent, ranks = self._parent, self._run.ranks
        series = ranks.run_on_rank_zero(lambda: parent.snapshots() if parent.has_snapshots else None)
        return SnapshotAverages.of_series(series, self._run.evaluator.layout, ranks)
