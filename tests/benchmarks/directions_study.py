"""What could make the snapshots' directions pay in the continued stage 2, each beside the same without directions.

    python -m tests.benchmarks.directions_study --out study --seeds 1 2 3

``--out`` may be that of ``anytime_study``: its stage 1 is taken. All rows begin at the last weights of epoch 40 and go
on for five epochs with stage 1's optimizer, half of its rate falling to 0; ``val`` chooses as in ``dimred compare``.
What is in ``--out`` already is not run again. Ends with a table in Markdown (``anytime_study.md`` has it): loss on
``test`` and what it is behind the row without directions, seed by seed.
"""

import argparse
import copy
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.build.comparable import check_comparable
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.files.run_names import CONFIG
from dimred.pipelines.compare import ALONE, Comparison, Entry
from dimred.run.device import set_up
from dimred.search.basis_check import Basis
from dimred.search.bfgs import CurvatureState, InverseBFGS
from dimred.search.direction import DirectionRule, Proposal
from dimred.search.result import SearchState
from dimred.search.step import SubspaceTrainStep
from tests.benchmarks.anytime_study import DATA, OPTIONS, RECIPES, compare, deviation, mean

AT = 40
REFERENCE = "no directions"
PAIR_OF, OBJECTIVE_OF = 16, 4  # batches


class GroupPairsState(NamedTuple):
    """What ``GroupPairs`` remembers.

    Attributes:
        curvature: state of BFGS, without a pair.
        place: sum of the accepted steps, (k,).
        places, grads: sums over the group so far, (k,) each.
        count: steps in the group so far.
        earlier: the last full group's mean place and mean gradient; None before the first.
    """

    curvature: CurvatureState
    place: np.ndarray
    places: np.ndarray
    grads: np.ndarray
    count: int = 0
    earlier: tuple[np.ndarray, np.ndarray] | None = None


class GroupPairs:
    """BFGS with pairs of groups: s and y are the differences of the means over ``size`` steps.

    The noise of y falls with the size, and s grows (Byrd, Hansen, Nocedal & Singer, A Stochastic Quasi-Newton Method
    for Large-Scale Optimization, 2016, take the same s, and y from the Hessian of a larger batch). With size 1 it is
    ``InverseBFGS`` with consecutive pairs.
    """

    wants_end_gradient = False

    def __init__(self, n_components: int, size: int):
        self.rule, self.size = InverseBFGS(n_components), size

    def initial(self) -> GroupPairsState:
        """H = I, no group."""
        nothing = np.zeros(self.rule.n_components)
        return GroupPairsState(self.rule.initial(), nothing, nothing, nothing)

    def propose(self, state: GroupPairsState, subspace_grad: np.ndarray) -> Proposal:
        """-H g_k, after the pair that this gradient completes."""
        places, grads, count = state.places + state.place, state.grads + subspace_grad, state.count + 1
        curvature, earlier = state.curvature, state.earlier
        if count == self.size:
            here, grad = places / count, grads / count
            if earlier is not None:
                pair = {"step_diff": here - earlier[0], "start_grad": earlier[1], "end_grad": grad}
                curvature = curvature._replace(**pair)
            places, grads, count, earlier = np.zeros_like(places), np.zeros_like(grads), 0, (here, grad)
        proposal = self.rule.propose(curvature, subspace_grad)
        taken = proposal.state._replace(step_diff=None, start_grad=None, end_grad=None)
        return proposal._replace(state=GroupPairsState(taken, state.place, places, grads, count, earlier))

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> GroupPairsState:
        """The accepted step moves the place."""
        state: GroupPairsState = proposal.state
        return state._replace(place=state.place + step_size * proposal.direction)


class ScaledTrustRegion:
    """BFGS in the coordinates u_i = z_i / spread_i, no step longer than a radius there.

    ``spread`` is the snapshots' standard deviation along each direction, so that a step of 1 along any of them is as
    long as the trajectory is wide. The radius follows Nocedal & Wright, Numerical Optimization, algorithm 4.1, with the
    line search in place of the ratio: doubled after a full step on the boundary, a quarter after a rejected step, the
    length of the step after a shortened one. The radius is not part of the state; a study does not resume.
    """

    wants_end_gradient = False

    def __init__(self, spread: np.ndarray, radius: float, largest: float):
        self.rule, self.spread = InverseBFGS(len(spread)), np.asarray(spread, dtype=np.float64)
        self.radius, self.largest, self.proposed = radius, largest, None
        self.initial = self.rule.initial

    def propose(self, state: CurvatureState, subspace_grad: np.ndarray) -> Proposal:
        """The direction in the basis's own coordinates."""
        if self.proposed is not None:  # not followed
            self.radius /= 4
        inner = self.rule.propose(state, self.spread * subspace_grad)
        factor = min(1.0, self.radius / max(float(np.linalg.norm(inner.direction)), 1e-300))
        self.proposed = inner._replace(direction=factor * inner.direction, slope=factor * inner.slope)
        return self.proposed._replace(direction=self.spread * self.proposed.direction)

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> CurvatureState:
        """The radius learns how far the step went."""
        inner, self.proposed = self.proposed, None
        length = step_size * float(np.linalg.norm(inner.direction))
        if step_size < 1:
            self.radius = length
        elif length > 0.99 * self.radius:
            self.radius = min(2 * self.radius, self.largest)
        return self.rule.follow(inner, self.spread * subspace_grad, step_size, None)


def scaled_trust_region(basis: Basis) -> ScaledTrustRegion:
    """From a half of the trajectory's standard deviation, up to as many as a snapshot is away from the mean."""
    spread = np.sqrt(basis.explained_variance)
    return ScaledTrustRegion(spread, 0.5, math.sqrt(len(spread)))


class Tried(Comparison):
    """A comparison whose searches may have another direction rule.

    Attributes:
        rule: makes it from the basis; None for the configured one.
    """

    rule: Callable[[Basis], DirectionRule] | None = None

    def search_step(
        self, settings: StageTwoConfig, network: Any, basis: Basis | None, *others: Any
    ) -> SubspaceTrainStep:
        """The configured step, with the rule."""
        step = super().search_step(settings, network, basis, *others)
        if self.rule is not None:
            step.direction_rule = self.rule(basis)
            step.state = SearchState(step.direction_rule.initial())
        return step

    def with_rule(self, rule: Callable[[Basis], DirectionRule]) -> Entry:
        """The continued search with another rule."""
        changed = copy.copy(self)
        changed.rule = rule
        return changed.continued()

    def of_groups(self, **options: Any) -> Entry:
        """Gradient, pair and line search over several batches, and as many times fewer steps."""
        groups = copy.copy(self)
        groups.two = self.two.model_copy(update={"accumulation": OBJECTIVE_OF * self.two.accumulation})
        return groups.continued(**options)

    def alone_for_as_long(self) -> Entry:
        """Without directions, for as many passes as with them."""
        found = json.loads((self.folder / "directions of the snapshots.json").read_text())
        return self.continued(**ALONE, epochs=math.ceil(found["passes"] - self.at - 1e-9))


ROWS: dict[str, Callable[[Tried], Entry]] = {
    REFERENCE: lambda tried: tried.continued(**ALONE),
    "directions of the snapshots": Tried.continued,
    "no directions, as many passes as that": Tried.alone_for_as_long,
    "random directions": Tried.continued_random,
    f"pairs of groups of {PAIR_OF} steps": lambda tried: tried.with_rule(
        lambda basis: GroupPairs(len(basis.components), PAIR_OF)
    ),
    "trust region in scaled coordinates": lambda tried: tried.with_rule(scaled_trust_region),
    f"objective over {OBJECTIVE_OF} batches": Tried.of_groups,
    f"no directions, {OBJECTIVE_OF} batches a step": lambda tried: tried.of_groups(**ALONE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", choices=list(DATA), default=["photos", "source_code"])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in arguments.tasks:
            run(arguments.out.resolve() / task, task, seed)
    print(table(arguments.out, arguments.tasks, arguments.seeds))


def run(folder: Path, task: str, seed: int) -> None:
    """The rows of one stage 1, a file each."""
    out = folder / "directions" / str(seed)
    missing = [name for name in ROWS if not (out / f"{name}.json").exists()]
    if not missing:
        return
    compare(folder, task, seed, [AT], ["last"], [])  # trains stage 1, unless it is there
    out.mkdir(parents=True, exist_ok=True)
    stage_1, data = folder / "comparison" / f"seed_{seed}" / "stage_1", folder / f"data_{seed}"
    one = load_config(StageOneConfig, stage_1 / CONFIG)
    two = load_config(StageTwoConfig, RECIPES[task][1], OPTIONS.get(task, [])).model_copy(update={"seed": seed})
    n_components = check_comparable(data, stage_1, one, two, AT, ["continued"])
    set_up(seed)
    measure(Tried(data, stage_1, one, two, AT, n_components, out), missing)


def measure(tried: Tried, names: Iterable[str]) -> None:
    """These rows, in the order of ``ROWS``, each into ``NAME.json``."""
    for name in names:
        entry = ROWS[name](tried)
        record = {"passes": entry.passes, "chosen": entry.chosen, **tried.evaluator.report(entry.arrays)}
        (tried.folder / f"{name}.json").write_text(json.dumps(record))
        print(f"seed {tried.one.seed}: {name}: {record}", flush=True)


def table(out: Path, tasks: list[str], seeds: list[int]) -> str:
    """Loss on ``test``, mean and standard deviation, and paired, in percent of it, mean and standard error."""
    lines = ["| | " + " | ".join(f"{task}: passes | loss | ahead by, % |" for task in tasks)]
    lines.append("|---|" + "---|---|---|" * len(tasks))
    for name in ROWS:
        cells = []
        for task in tasks:
            found = [read(out, task, seed, name) for seed in seeds]
            losses = [one["test_loss"] for one in found]
            plain = [read(out, task, seed, REFERENCE)["test_loss"] for seed in seeds]
            ahead = [100 * (1 - ours / theirs) for ours, theirs in zip(losses, plain, strict=True)]
            cells += [f"{mean([one['passes'] for one in found]):.1f}", f"{mean(losses):.3f} ± {deviation(losses):.3f}"]
            cells.append(f"{mean(ahead):+.2f} ± {deviation(ahead) / len(ahead) ** 0.5:.2f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read(out: Path, task: str, seed: int, name: str) -> dict[str, Any]:
    """What a row found."""
    found: dict[str, Any] = json.loads((out / task / "directions" / str(seed) / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    main()
