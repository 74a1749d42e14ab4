"""The table of rooms in design.md, held by walking every import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("weights", "subspace", "search", "train_step", "models", "data", "runtime", "evaluate", "report", "cli")
EVERYTHING = tuple(f"dimred.{name}" for name in (*ROOMS, "errors", "ranks", "config", "build"))

# Room -> what of dimred it may import besides itself. A module below a room stands for that module only.
MAY_IMPORT = {
    "errors": (),
    "ranks": ("dimred.errors",),
    "config": ("dimred.errors",),
    "weights": ("dimred.errors",),
    "subspace": ("dimred.errors", "dimred.weights"),
    "search": ("dimred.errors", "dimred.ranks", "dimred.train_step", "dimred.subspace.sharding"),
    "train_step": ("dimred.errors", "dimred.ranks"),
    "models": ("dimred.errors",),
    "data": ("dimred.errors",),
    "runtime": ("dimred.errors", "dimred.ranks", "dimred.weights"),
    "evaluate": (
        "dimred.errors",
        "dimred.ranks",
        "dimred.weights",
        "dimred.subspace",
        "dimred.train_step.moving_statistics",
        "dimred.runtime.parameters",
        "dimred.runtime.faults",
    ),
    "report": ("dimred.errors", "dimred.weights", "dimred.subspace"),
    "build": tuple(module for module in EVERYTHING if module != "dimred.cli"),
    "cli": (
        "dimred.errors",
        "dimred.config",
        "dimred.weights",
        "dimred.subspace",
        "dimred.report",
        "dimred.runtime.launch",
        "dimred.runtime.job",
        "dimred.runtime.rank_table",
    ),
    "pipelines": (*(module for module in EVERYTHING if module != "dimred.cli"),),
    "__init__": EVERYTHING,
}

# Who may import mindspore while being imported. Elsewhere it may stand inside a function of these modules.
WITH_MINDSPORE = (*set(ROOMS) - {"weights", "subspace", "report", "cli"}, "ranks", "build", "pipelines", "__init__")
WITHOUT_MINDSPORE = tuple(
    f"dimred.runtime.{name}"
    for name in (
        "launch",
        "launch_check",
        "job",
        "console",
        "log_tail",
        "rank_messages",
        "rank_table",
        "rank_process",
        "heartbeat",
        "stage_bar",
        "stall",
        "node_link",
        "die_with_parent",
        "onednn",
    )
)
MINDSPORE_IN_FUNCTIONS = ("dimred.weights.checkpoint_io", "dimred.weights.layout", "dimred.cli")

# Beyond the table: modules free of mindspore that the command line shows (``dimred data``) or prints with.
# A command that needs MindSpore calls the function of its pipeline, imported when it is called.
ALSO = {
    "cli": (
        "dimred.runtime.console",
        "dimred.data.digits",
        "dimred.data.photos",
        "dimred.data.image_check",
        "dimred.models",
        "dimred.evaluate.averages",
    ),
    "evaluate": ("dimred.runtime.parameters",),
}

FILES = sorted(
    path
    for folder in ("dimred", "pipelines")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[0] if parts[0] == "pipelines" else parts[1] if len(parts) > 1 else "__init__"


def is_within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module or name imported, whether it happens when the file is imported)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node)
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [(f"{node.module}.{alias.name}", id(node) not in late) for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found += [(arg.value, id(node) not in late) for arg in node.args if isinstance(arg, ast.Constant)]
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_every_file_has_a_room():
    assert len(FILES) > 50
    assert {room_of(name_of(path)) for path in FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_stay_within_the_table(path):
    module, room = name_of(path), room_of(name_of(path))
    own = module if room == "pipelines" else f"dimred.{room}"
    allowed = (own, *MAY_IMPORT[room], *ALSO.get(room, ()))
    for imported, at_import in imports(path):
        top = imported.split(".")[0]
        if top == "dimred" and imported != "dimred.__version__":
            assert any(is_within(imported, place) for place in allowed), f"{module} imports {imported}"
        if top == "pipelines":
            from_a_command = room == "cli" and not at_import
            assert from_a_command, f"{module} imports {imported}"
        if top == "mindspore":
            free = room in WITH_MINDSPORE and module not in WITHOUT_MINDSPORE
            in_function = not at_import and any(is_within(module, place) for place in MINDSPORE_IN_FUNCTIONS)
            assert free or in_function, f"{module} imports {imported}"


CLI = [name_of(path) for path in FILES if room_of(name_of(path)) == "cli"]


@pytest.mark.parametrize(
    "modules", [["dimred"], ["dimred.config", "dimred.errors"], CLI], ids=["dimred", "config", "cli"]
)
def test_importing_does_not_load_mindspore(modules):
    code = f"import sys, {', '.join(modules)}; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
