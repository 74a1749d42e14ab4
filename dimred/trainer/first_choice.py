"""What the choice before stage 2's first step has measured, kept for a run that is killed on the way."""

from collections.abc import Mapping

import numpy as np

from dimred.averaging.selection import Candidate, Measured
from dimred.distributed.share import share
from dimred.errors import CheckpointError
from dimred.io.atomic import retry
from dimred.io.run_names import STATES
from dimred.trainer.session import Session
from dimred.trainer.states import RunState, read_state, write_state


class FirstChoice:
    """The file ``resume/measured.ckpt``: candidates that were measured before the run's first state.

    Args:
        session: of the run. Only a run with the same identity takes the measurements up.
    """

    def __init__(self, session: Session):
        self._session = session
        self._path = session.out / STATES / "measured.ckpt"

    def known(self) -> Mapping[str, Measured]:
        """Return what was measured, by candidate, on every rank; nothing where there is no file of this run."""
        ranks = self._session.ranks
        found = share(ranks.run_on_rank_zero(self._read), ranks, read_state)
        if found is None:
            return {}
        return {name: Measured(losses, found.progress["metrics"][name]) for name, losses in found.arrays.items()}

    def save(self, candidates: list[Candidate]) -> None:
        """Write what all candidates so far have on ``val``. A candidate whose losses are not finite is left out."""
        measured = [one for one in candidates if np.isfinite(one.losses).all()]
        losses, metrics = {one.name: one.losses for one in measured}, {one.name: one.metric for one in measured}
        progress = {"run": self._session.recorded_identity(), "metrics": metrics}
        self._session.ranks.run_on_rank_zero(lambda: retry(lambda: write_state(self._path, losses, progress)))

    def forget(self) -> None:
        """Remove the file: the run has a state."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> RunState | None:
        try:
            found = read_state(self._path)
        except CheckpointError:  # missing, or damaged: everything is measured again
            return None
        return found if found.progress["run"] == self._session.recorded_identity() else None
