"""Count how a default stage 2 hands WEIGHTS on, and which methods a class tree defines more than once.

python -m tests.helpers.hand_overs [ROOT]

ROOT is a checkout, by default this one. A call hands WEIGHTS on if an argument is the path, or what was opened from it:
a variable or an attribute named ``weights``, ``handover`` or ``parent``. Counted are stage 2's program, the packages
of the stages and the package that they stand on. Modules and lines are those that the program imports when it is
loaded, itself included.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

STAGES, BELOW = ("stages", "trainer", "builders"), ("runs",)  # older checkouts have others
NAMES = ("weights", "handover", "parent")


def files_of(root: Path) -> dict[str, Path]:
    """Find the files of the stages' modules and of stage 2's program in a checkout, by the modules' names."""
    found = {
        f"dimred.{package}.{path.stem}": path
        for package in (*STAGES, *BELOW)
        for path in sorted((root / "dimred" / package).glob("*.py"))
    }
    return found | {"dimred.pipelines.stage_2": root / "pipelines" / "stage_2.py"}


def hand_overs(tree: ast.AST) -> int:
    """Count the calls with an argument that is WEIGHTS or was opened from them."""

    def is_weights(node: ast.expr) -> bool:
        return getattr(node, "id", getattr(node, "attr", None)) in NAMES

    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(any(map(is_weights, [*call.args, *(word.value for word in call.keywords)])) for call in calls)


def imported(name: str, files: dict[str, Path], seen: set[str]) -> set[str]:
    """Collect the modules of the stages that are loaded with a module, itself included; ``seen`` gets their names."""
    seen.add(name)
    for node in ast.parse(files[name].read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module in files and node.module not in seen:
            imported(node.module, files, seen)
    return seen


def repeated_methods(trees: list[ast.Module]) -> Iterator[str]:
    """Yield the methods, but special ones, that two or more classes of one tree define."""
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}

    def root_of(name: str) -> str:
        bases = [getattr(base, "id", None) for base in classes[name].bases]
        return next((root_of(base) for base in bases if base in classes), name)

    defined: dict[tuple[str, str], set[str]] = {}
    for name, node in classes.items():
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("__"):
                defined.setdefault((root_of(name), method.name), set()).add(name)
    for (root, method), owners in sorted(defined.items()):
        if len(owners) > 1:
            yield f"{root}: {method} in {', '.join(sorted(owners))}"


def main(root: Path) -> None:
    """Print the counts for a checkout."""
    files = files_of(root)
    trees = {name: ast.parse(path.read_text()) for name, path in files.items()}
    print(f"calls that hand WEIGHTS on: {sum(map(hand_overs, trees.values()))}")
    loaded = imported("dimred.pipelines.stage_2", files, set())
    lines = {name: len(files[name].read_text().splitlines()) for name in loaded}
    of_stages = [lines[name] for name in loaded if name.split(".")[1] not in BELOW]
    print(f"modules that the program loads, itself and those of the stages: {len(of_stages)}, {sum(of_stages)} lines")
    print(f"and with those of the package that the stages stand on: {len(lines)}, {sum(lines.values())} lines")
    repeated = list(repeated_methods(list(trees.values())))
    print(f"methods defined more than once in a class tree: {len(repeated)}", *repeated, sep="\n  ")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
