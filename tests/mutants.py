"""Change one operator of a numeric kernel at a time, and see whether the tests about it notice.

    nice -n 15 python -m tests.mutants                              # all kernels: hours of one core
    nice -n 15 python -m tests.mutants curves.py averaging/mean.py  # some of them
    python -m tests.mutants --list curves.py                        # their mutants, without a test

Each mutant is written into a copy of the repository, never into the working tree. The outcomes are added to
``mutants.jsonl`` as they come, and a call tries only what is not there: the mutants of a kernel that was changed, for
example. ``--again`` tries the survivors once more, after a test was added; remove the file to try all of them. At the
end stands the table of ``tests/README.md``. The status is 1 if a survivor is not in ``EQUIVALENT``, or if something
there did not survive.

Each mutant's tests run in a fork of this process, which has imported MindSpore but not dimred; that saves most of the
seconds that a mutant costs. A fork gets no more than its share of memory and of processor time.
"""

import argparse
import ast
import copy
import gc
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

REPOSITORY = Path(__file__).parents[1]
STORE = REPOSITORY / "mutants.jsonl"
FORK = multiprocessing.get_context("fork")
MEMORY = 8 * 2**30  # bytes that a fork may allocate; a mutant may ask for any number

_SEARCH = "tests/search_step"
_STEP = "tests/train_step"
_PARTS = f"{_STEP}/test_optimizers.py::test_"
KERNELS = {
    "search_step/line_search.py": (f"{_SEARCH}/test_rules.py", f"{_SEARCH}/test_own_line_search.py"),
    "search_step/direction.py": (
        f"{_SEARCH}/test_rules.py",
        f"{_SEARCH}/test_classic_problems.py",
        f"{_SEARCH}/test_against_twin.py",
    ),
    "search_step/moves.py": (
        f"{_SEARCH}/test_moves.py",
        f"{_SEARCH}/test_safety.py",
        f"{_SEARCH}/test_against_twin.py",
    ),
    "subspace/spectrum.py": (
        "tests/subspace/test_fit_basis.py",
        "tests/subspace/test_fit_basis_refusals.py",
        "tests/subspace/test_load_basis.py",
    ),
    "subspace/gram_and_rows.py": ("tests/subspace/test_fit_basis.py", "tests/subspace/test_fit_basis_refusals.py"),
    "curves.py": ("tests/test_curves.py",),
    "train_step/schedule.py": (
        "tests/test_curves.py",
        f"{_PARTS}a_schedule_is_its_twin",
        f"{_PARTS}a_cooldown_leaves_the_schedule_where_it_is_and_falls_to_nothing",
    ),
    "averaging/mean.py": ("tests/averaging/test_mean.py", "tests/evaluation/test_averages.py"),
    "averaging/choice.py": ("tests/averaging/test_choice.py",),
    "averaging/windows.py": ("tests/averaging/test_windows.py",),
    "train_step/ema.py": (f"{_STEP}/test_ema.py",),
    "train_step/interval_mean.py": (f"{_STEP}/test_interval_mean.py",),
    "train_step/clipping.py": (
        f"{_PARTS}clipping_is_its_twin",
        f"{_PARTS}entries_of_very_different_sizes_are_clipped_together",
        f"{_PARTS}a_gradient_in_half_precision_is_clipped_in_float32",
        f"{_PARTS}a_gradient_that_is_not_finite_is_clipped_to_nan_everywhere",
    ),
    "train_step/loss_scale.py": (
        f"{_PARTS}a_gradient_comes_back_from_its_scale_with_its_weight",
        f"{_PARTS}the_dynamic_scale_begins_at_2_to_the_16_and_ends_at_2_to_the_24",
        f"{_PARTS}the_dynamic_scale_is_its_twin",
        f"{_STEP}/test_overflow.py",
    ),
    "train_step/weighted_loss.py": (
        f"{_STEP}/test_weighted_loss.py",
        f"{_STEP}/test_label_counts.py",
        f"{_STEP}/test_micro_batches.py",
    ),
    "train_step/mean_loss.py": (f"{_STEP}/test_weighted_loss.py", f"{_STEP}/test_step.py"),
    "evaluation/batch_norm.py": ("tests/evaluation/test_batch_norm.py",),
    "merging/order.py": ("tests/merging/test_order.py",),
    "runs/begun.py": ("tests/runs/test_begun.py",),
}
"""Each kernel, a file of ``dimred/``, with the tests that are about it, the quick ones first."""

_AT_THE_BOUND = "only a number that equals the bound to the last digit tells them apart"
_NEUTRAL = "x + 0 is x - 0, and x times 1 is x / 1"
EQUIVALENT: dict[str, dict[str, str]] = {
    "search_step/direction.py": {
        "scaled_condition_number(after) <= _LARGEST_CONDITION -> scaled_condition_number(after) < _LARGEST_CONDITION": (
            _AT_THE_BOUND
        ),
        "_SMALLEST_NORM < grad_norm < math.inf -> _SMALLEST_NORM <= grad_norm < math.inf": _AT_THE_BOUND,
        "_SMALLEST_NORM < step_norm < math.inf -> _SMALLEST_NORM <= step_norm < math.inf": _AT_THE_BOUND,
    },
    "subspace/gram_and_rows.py": {
        "min(CHUNK, n_columns) -> max(CHUNK, n_columns)": "a buffer may be wider than what it holds",
        "range(2) -> range(3)": "the third buffer is never used",
    },
    "subspace/spectrum.py": {
        "np.abs(scores) >= 0.99 * np.abs(scores).max(axis=0) -> np.abs(scores) > 0.99 * np.abs(scores).max(axis=0)": (
            _AT_THE_BOUND
        ),
        "scores * signs -> scores / signs": "a sign is 1 or -1",
    },
    "evaluation/batch_norm.py": {
        "x.size // x.shape[1] -> x.size / x.shape[1]": "the quotient is whole",
        "m2 + n * (mean - mean_of_all) ** 2 -> m2 - n * (mean - mean_of_all) ** 2": (
            "the means differ only between ranks, and tests/distributed notices it"
        ),
        "recorders[0] -> recorders[-1]": "a network that is a BatchNorm has one",
        "layers[0] -> layers[-1]": "a network that is a BatchNorm has one",
    },
    "train_step/mean_loss.py": {"numbers[0] -> numbers[-1]": "there is one number"},
    "train_step/weighted_loss.py": {
        "numbers[0] -> numbers[-1]": "there is one number",
        "self.n_items + 0.0 -> self.n_items - 0.0": _NEUTRAL,
        "Tensor(-1.0, ms.float32) -> Tensor(+1.0, ms.float32)": "each pass assigns the parameter before it is read",
        "labels.size // labels.shape[min(1, labels.ndim - 1)] -> labels.size / labels.shape[min(1, labels.ndim - 1)]": (
            "the quotient is whole"
        ),
    },
    "averaging/mean.py": {
        "min(4, n_processors()) -> max(4, n_processors())": "the number of threads changes no sum",
        "min(4, n_processors()) -> min(5, n_processors())": "the number of threads changes no sum",
        "min(4, n_processors()) -> min(3, n_processors())": "the number of threads changes no sum",
        "terms[-1] -> terms[-0]": "the tensor is the same in all checkpoints",
        "checkpoints[0] -> checkpoints[-1]": "all checkpoints have the same shapes",
        "range(0, tensor.n_bytes, BLOCK) -> range(-1, tensor.n_bytes, BLOCK)": "no byte before a tensor is read",
        "checkpoints[1:] -> checkpoints[0:]": "the first checkpoint equals itself",
        "coefficient == 1 -> coefficient == 0": "it saves the product with 1",
        "divisor != 1 -> divisor != 0": "it saves the division by 1",
    },
    "train_step/ema.py": {
        "(1.0 - self.decay) * ops.ones((), ms.float32) -> (1.0 - self.decay) / ops.ones((), ms.float32)": _NEUTRAL,
    },
    "train_step/interval_mean.py": {
        "n_steps > 0 -> n_steps > 1": "the mean of a single step is the weight itself, but for a rounding",
    },
    "train_step/clipping.py": {
        "largest < 1.0 / _ORDINARY -> largest <= 1.0 / _ORDINARY": "at the bound either power of two keeps all digits",
        "largest > _ORDINARY -> largest >= _ORDINARY": "at the bound either power of two keeps all digits",
        "length <= self.norm -> length < self.norm": "at the bound the factor is the power of two itself",
    },
    "train_step/loss_scale.py": {
        "self.scale + 0.0 -> self.scale - 0.0": _NEUTRAL,
        "self.n_overflows + 0 -> self.n_overflows - 0": _NEUTRAL,
        "self.scale * 1.0 -> self.scale / 1.0": _NEUTRAL,
    },
}
"""Kernel -> mutant -> why no test can tell it from the original."""

_BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BOOLEANS = {ast.And: ast.Or, ast.Or: ast.And}
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax"}
_EXTREMES |= {other: name for name, other in _EXTREMES.items()}
_COUNTING = {*_EXTREMES, "range", "arange"}  # functions whose whole numbers are bounds

# What a fork needs and dimred does not change; imported once.
_PRELOADED = (
    "h5py",
    "hypothesis.extra.numpy",
    "matplotlib.pyplot",
    "mindspore.dataset",
    "mindspore.mint",
    "mindspore.train",
    "psutil",
    "pydantic",
    "pytest",
    "rich",
    "safetensors",
    "scipy.stats",
    "typer",
    "yaml",
)


class Mutant(NamedTuple):
    """A kernel with one change.

    Attributes:
        kernel: the key in ``KERNELS``.
        line: number of the line that is changed, in the original.
        change: the expression before and after.
        source: the whole module.
    """

    kernel: str
    line: int
    change: str
    source: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


class Outcome(NamedTuple):
    """What the tests say of a module.

    Attributes:
        name: ``killed``, ``timed out`` or ``survived``.
        by: the test that failed; empty for the others.
        seconds: processor time.
    """

    name: str
    by: str
    seconds: float


Change = Callable[[Any], object]


def mutants(kernel: str, source: str) -> list[Mutant]:
    """List the mutants of a module, in the order of its lines, without its docstrings, which may be rewritten."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    words = _words(nodes)
    found = []
    for number, node in enumerate(nodes):
        if node in words:
            continue
        for change in _changes(node, parents):
            changed = copy.deepcopy(tree)
            their = list(ast.walk(changed))  # in the same order
            change(their[number])
            before = _shown(node, parents)
            text = f"{ast.unparse(before)} -> {ast.unparse(their[nodes.index(before)])}"
            found.append(Mutant(kernel, before.lineno, text, ast.unparse(changed)))
    return sorted(dict.fromkeys(found), key=lambda mutant: mutant.line)


def _words(nodes: Sequence[ast.AST]) -> set[ast.AST]:
    """Return the nodes of annotations, errors, log lines and texts, which compute nothing."""
    roots: list[ast.AST | None] = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr | ast.Raise) or (
            isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
        ):
            roots.append(node)
        elif isinstance(node, ast.AnnAssign | ast.arg):
            roots.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            roots.append(node.returns)
    return {node for root in roots if root is not None for node in ast.walk(root)}


def _changes(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[Change]:
    """Yield functions that change a copy of the node in place, each in one way."""
    match node:
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _BINARY:
            yield _with("op", _BINARY[type(node.op)]())
        case ast.BoolOp():
            yield _with("op", _BOOLEANS[type(node.op)]())
        case ast.UnaryOp(op=ast.USub()):
            yield _with("op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not()):
            yield _with("operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Compare():
            for place, kind in enumerate(node.ops):
                others = [*node.ops]
                others[place] = _COMPARISONS[type(kind)]()
                yield _with("ops", others)
        case ast.Name(id=name) if name in _EXTREMES:
            yield _with("id", _EXTREMES[name])
        case ast.Attribute(attr=name) if name in _EXTREMES:
            yield _with("attr", _EXTREMES[name])
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and _is_bound(node, parents):
            yield _with("value", value + 1)
            yield _with("value", value - 1)
        case ast.Slice():
            if not isinstance(node.lower, ast.Constant):
                yield _with("lower", _moved(node.lower, 1))
            if not isinstance(node.upper, ast.Constant):
                yield _with("upper", _moved(node.upper, -1))


def _with(field: str, value: Any) -> Change:
    return lambda node: setattr(node, field, value)


def _moved(bound: ast.expr | None, by: int) -> ast.expr:
    """Return a bound of a slice, moved; one that is absent is the beginning or the end."""
    if bound is None:
        return ast.Constant(by)
    return ast.BinOp(bound, ast.Add() if by > 0 else ast.Sub(), ast.Constant(1))


def _is_bound(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a whole number is part of an index, of a comparison, or of what counts."""
    while node in parents and not isinstance(node, ast.stmt):
        parent = parents[node]
        match parent:
            case ast.Subscript():
                return parent.slice is node
            case ast.Compare():
                return True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name in _COUNTING
        node = parent
    return False


def _shown(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Any:
    """Return the node that shows a change: the operation, or what an index or a name is part of."""
    is_sign = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Compare | ast.stmt) and not is_sign:
        return node
    while isinstance(parents[node], ast.expr | ast.Slice | ast.keyword):
        node = parents[node]
        if isinstance(node, ast.Call | ast.Compare | ast.Subscript):
            break
    return node


class Copy:
    """A copy of the repository in which one kernel at a time is changed.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path):
        self._root, self._scratch = folder / "copy", folder / "scratch"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info", STORE.name, ".*_cache")
        shutil.copytree(REPOSITORY, self._root, symlinks=True, ignore=ignored)

    def outcome(self, kernel: str, source: str, limit_seconds: float) -> Outcome:
        """Run the kernel's tests with this source in its place.

        Args:
            kernel: the key in ``KERNELS``.
            source: the module.
            limit_seconds: processor time; the clock may show twenty times as much, on a machine that is shared.
        """
        place = self._root / "dimred" / kernel
        original = place.read_bytes()
        place.write_text(source)
        for compiled in place.parent.glob(f"__pycache__/{place.stem}.*"):
            compiled.unlink()  # it is told by whole seconds and the size, which another mutant may have too
        try:
            status, seconds = self._forked(KERNELS[kernel], limit_seconds)
        finally:
            place.write_bytes(original)
        if status == 0:
            return Outcome("survived", "", seconds)
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return Outcome("timed out", "", seconds)
        failed = [line for line in self._shown() if line.startswith(("FAILED ", "ERROR "))]
        words = failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"status {status}"
        return Outcome("killed", words, seconds)

    def _shown(self) -> list[str]:
        return (self._scratch / "shown").read_text(errors="replace").splitlines()

    def said(self) -> str:
        """Return the end of what the tests printed last."""
        return "\n".join(self._shown()[-40:])

    def _forked(self, tests: Sequence[str], limit_seconds: float) -> tuple[int, float]:
        """Return the status of pytest, negative for a signal, and the processor time that it took."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        before = _seconds_of_children()
        child: Any = FORK.Process(target=self._run, args=(tests, limit_seconds))
        child.start()
        child.join(20 * limit_seconds)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what is left of it, and what the tests started
        child.join()
        return child.exitcode, _seconds_of_children() - before

    def _run(self, tests: Sequence[str], limit_seconds: float) -> NoReturn:
        """Run the tests in the fork, as if it had been started in the copy."""
        import pytest

        os.setsid()
        shown = os.open(self._scratch / "shown", os.O_CREAT | os.O_WRONLY)
        os.dup2(shown, 1)
        os.dup2(shown, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_seconds), int(limit_seconds) + 5))
        os.chdir(self._root)
        os.environ["PYTHONPATH"] = str(self._root)  # for the processes that tests start
        sys.path[0] = str(self._root)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "dimred")]:
            del sys.modules[name]
        rewritten = "ignore::pytest.PytestAssertRewriteWarning"  # plug-ins that are imported already
        options = ["-x", "-q", "-W", rewritten, "--assert=plain", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        sys.exit(int(pytest.main([*options, f"--basetemp={self._scratch / 'tmp'}", *tests])))


def _seconds_of_children() -> float:
    """Return the processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Store:
    """The outcomes so far, by the digest of the mutant's source; a line of the file for each."""

    def __init__(self, file: Path):
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.outcomes = {
            record["digest"]: Outcome(record["outcome"], record["by"], record["seconds"])
            for record in map(json.loads, lines)
        }

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        self.outcomes[mutant.digest] = outcome
        record = {"kernel": mutant.kernel, "line": mutant.line, "change": mutant.change, "digest": mutant.digest}
        record |= {"outcome": outcome.name, "by": outcome.by, "seconds": round(outcome.seconds, 1)}
        with self._file.open("a") as file:
            file.write(json.dumps(record) + "\n")


def try_out(kernel: str, copied: Copy, store: Store, again: bool) -> None:
    """Try the kernel's mutants that have no outcome yet; ``again``: the survivors too."""
    source = source_of(kernel)
    done = {digest for digest, outcome in store.outcomes.items() if not (again and outcome.name == "survived")}
    left = [mutant for mutant in mutants(kernel, source) if mutant.digest not in done]
    if not left:
        return
    whole = copied.outcome(kernel, ast.unparse(ast.parse(source)), 600)
    if whole.name != "survived":
        raise SystemExit(f"{kernel}: its tests fail without a change\n{copied.said()}")
    broken = copied.outcome(kernel, "raise RuntimeError('the copy is what the tests import')", 600)
    if broken.name != "killed":
        raise SystemExit(f"{kernel}: its tests don't import it\n{copied.said()}")
    print(f"{kernel}: {len(left)} mutants, {whole.seconds:.0f} s of tests for a survivor", flush=True)
    for mutant in left:
        outcome = copied.outcome(kernel, mutant.source, 20 + 3 * whole.seconds)
        store.add(mutant, outcome)
        print(f"{kernel}:{mutant.line}: {mutant.change}: {outcome.name} {outcome.by}", flush=True)


def source_of(kernel: str) -> str:
    return (REPOSITORY / "dimred" / kernel).read_text()


def report(kernels: Sequence[str], store: Store) -> int:
    """Print the table and the survivors; return the status."""
    print("\n| kernel | mutants | killed | timed out | survived |\n|---|---|---|---|---|")
    outcomes = {
        kernel: [
            (mutant, store.outcomes[mutant.digest])
            for mutant in mutants(kernel, source_of(kernel))
            if mutant.digest in store.outcomes
        ]
        for kernel in kernels
    }
    total = [0, 0, 0, 0]
    for kernel, found in outcomes.items():
        names = [outcome.name for _, outcome in found]
        row = [len(names), *(names.count(name) for name in ("killed", "timed out", "survived"))]
        total = [a + b for a, b in zip(total, row, strict=True)]
        print(f"| `{kernel}` | {' | '.join(map(str, row))} |")
    print(f"| all | {' | '.join(map(str, total))} |")
    if total[0]:
        print(f"\n{(total[1] + total[2]) / total[0]:.1%} killed or timed out\n")
    status = 0
    for kernel, found in outcomes.items():
        reasons = EQUIVALENT.get(kernel, {})
        survivors = [mutant for mutant, outcome in found if outcome.name == "survived"]
        for mutant in survivors:
            print(f"- `{kernel}:{mutant.line}` `{mutant.change}`: {reasons.get(mutant.change, 'NO REASON')}")
        changes = {mutant.change for mutant in survivors}
        for change in reasons.keys() - changes:
            print(f"- `{kernel}` `{change}` did not survive; take it out of EQUIVALENT")
        if reasons.keys() != changes:
            status = 1
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help="all if none is given", metavar="KERNEL")
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    parser.add_argument("--list", action="store_true", help="list the mutants, and try none")
    parser.add_argument("--store", type=Path, default=STORE, help="the file of outcomes")
    given = parser.parse_args()
    for kernel in given.kernels:
        if kernel not in KERNELS:
            parser.error(f"KERNEL is {kernel!r}; allowed: {', '.join(KERNELS)}")
    kernels = given.kernels or list(KERNELS)
    if given.list:
        for mutant in (mutant for kernel in kernels for mutant in mutants(kernel, source_of(kernel))):
            print(f"{mutant.kernel}:{mutant.line}: {mutant.change}")
        return 0
    for name in _PRELOADED:
        __import__(name)
    gc.freeze()  # a fork shares what it does not change
    store = Store(given.store)
    with TemporaryDirectory(prefix="mutants") as folder:
        copied = Copy(Path(folder))
        for kernel in kernels:
            try_out(kernel, copied, store, given.again)
    return report(kernels, store)


if __name__ == "__main__":
    sys.exit(main())
