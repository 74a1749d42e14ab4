"""Hold the table of who may import whom, by walking every import."""

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import LONGER, TESTS

ROOT = Path(__file__).parents[1]

# Package -> the packages it may import besides itself, without exceptions.
OFFLINE = ("errors", "io", "run_files", "checkpoints", "subspace", "averaging", "merging")
MAY_IMPORT = {
    "errors": (),
    "curves": (),
    "factories": ("errors",),
    "console": ("errors",),
    "io": ("errors",),
    "run_files": ("errors", "io"),
    "config": ("errors", "curves", "io", "factories"),
    "checkpoints": ("errors", "io", "run_files"),
    "subspace": ("errors", "io", "checkpoints"),
    "averaging": ("errors", "curves", "io", "run_files", "checkpoints"),
    "merging": ("errors", "io", "run_files", "checkpoints", "averaging"),
    "launch": ("errors", "console", "io", "run_files", "workarounds"),  # of these only the loading of a backend
    "report": (*OFFLINE, "config", "factories"),
    "models": ("errors", "factories"),
    "data": ("errors", "io"),
    "distributed": ("errors", "io"),
    "vectors": ("errors", "distributed"),
    "workarounds": ("errors",),
    "train_step": ("errors", "curves", "config", "vectors", "distributed", "workarounds"),  # config has the ranges
    "search_step": ("errors", "vectors", "distributed", "train_step", "workarounds"),
    "evaluation": (
        "errors",
        "run_files",
        "checkpoints",
        "averaging",
        "data",
        "vectors",
        "distributed",
        "train_step",
    ),
}
# MindSpore's faults are mended in one room, which the packages that compute may enter.
MAY_IMPORT["workarounds"] = ("errors",)
for name in ("data", "vectors", "distributed", "train_step", "search_step", "evaluation"):
    MAY_IMPORT[name] = (*MAY_IMPORT[name], "workarounds")
MAY_IMPORT["runs"] = tuple(name for name in MAY_IMPORT if name not in ("merging", "report", "search_step", "subspace"))
MAY_IMPORT["stages"] = (*MAY_IMPORT["runs"], "runs", "search_step", "subspace")
MAY_IMPORT["comparison"] = (*MAY_IMPORT["stages"], "stages", "merging", "report")
MAY_IMPORT["proof"] = (*MAY_IMPORT["stages"], "stages")
MAY_IMPORT["pipelines"] = (*MAY_IMPORT["comparison"], "comparison", "proof")
MAY_IMPORT["__init__"] = MAY_IMPORT["comparison"]
MAY_IMPORT["__main__"] = ("cli",)

# These import no mindspore at any time. The command line and the public names import the rest inside functions.
WITHOUT_MINDSPORE = (
    "errors",
    "curves",
    "factories",
    "console",
    "io",
    "config",
    *OFFLINE[2:],
    "launch",
    "report",
    "cli",
)
MAY_IMPORT["cli"] = tuple(name for name in WITHOUT_MINDSPORE if name != "cli")
MAY_IMPORT_LATE = {"cli": (*MAY_IMPORT["pipelines"], "pipelines"), "__init__": MAY_IMPORT["pipelines"]}

# What is imported inside functions outside cli, and why. All else stands at the top of its file.
AFTER_MAKE_READY = "MindSpore reads the environment that make_ready sets"
IMPORTED_LATE = {
    ("dimred/data/digits.py", "sklearn"): "may be missing",
    ("dimred/merging/convert.py", "torch"): "may be missing",
    ("dimred/runs/listeners.py", "tensorboardX"): "may be missing",
    ("dimred/runs/use_gpu.py", "dimred"): AFTER_MAKE_READY,
    ("pipelines/machine.py", "dimred"): AFTER_MAKE_READY,
    ("pipelines/machine.py", "mindspore"): AFTER_MAKE_READY,
    ("pipelines/stage_1.py", "dimred"): AFTER_MAKE_READY,
    ("pipelines/stage_2.py", "dimred"): AFTER_MAKE_READY,
}

OF_DIMRED = ("__version__",)  # what dimred/__init__.py itself defines

FILES = sorted(path for folder in ("dimred", "pipelines") for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"dimred.{name}" if name.startswith("pipelines") else name


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """List (module or name imported, whether it happens while the file is imported)."""
    tree = parsed(path)
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


def test_every_file_has_a_package():
    assert len(FILES) > 50
    assert {package_of(module_of(path)) for path in FILES} <= set(MAY_IMPORT)


def misplaced(path: Path) -> list[str]:
    """List what a file imports that the table does not allow it."""
    module, package = module_of(path), package_of(module_of(path))
    wrong = []
    for imported, at_import in imports(path):
        top, *rest = imported.split(".")
        is_allowed = not imported.startswith(("unittest", "pipelines"))  # once installed, it is dimred.pipelines
        if top == "dimred" and rest[0] not in OF_DIMRED:
            allowed = (*MAY_IMPORT[package], *(() if at_import else MAY_IMPORT_LATE.get(package, ())))
            is_own = rest[0] == package and (package != "pipelines" or "configs" in rest)
            is_allowed = is_own or rest[0] in allowed
        elif top == "mindspore":
            is_allowed = package not in WITHOUT_MINDSPORE
        if not is_allowed:
            wrong.append(f"{module} imports {imported}")
    return wrong


def test_imports_stay_within_the_table():
    assert [line for path in FILES for line in misplaced(path)] == []


def test_imports_stand_at_the_top_but_for_those_with_a_reason():
    """The public names of dimred/__init__.py are loaded on first use, and are imported there for type checkers."""
    late = {
        (str(path.relative_to(ROOT)), imported.partition(".")[0])
        for path in FILES
        if package_of(module_of(path)) not in ("cli", "__init__")
        for imported, at_import in imports(path)
        if not at_import
    }
    assert late == {*IMPORTED_LATE}


@pytest.mark.parametrize("packages", [("__init__",), WITHOUT_MINDSPORE], ids=["dimred", "all that do without"])
def test_importing_does_not_load_mindspore(packages):
    modules = [module_of(path) for path in FILES if package_of(module_of(path)) in packages]
    code = f"import sys, {', '.join(modules)}; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("stage", [1, 2])
def test_the_program_of_a_stage_is_short(stage):
    """It reads: set up, run, end."""
    assert len((ROOT / "pipelines" / f"stage_{stage}.py").read_text(encoding="utf-8").splitlines()) <= 55


def test_every_folder_of_tests_is_collected(pytestconfig):
    """pytest leaves out folders named ``build``, for example, unless norecursedirs says otherwise."""
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    left_out = {name for name in folders for pattern in pytestconfig.getini("norecursedirs") if fnmatch(name, pattern)}
    assert len(folders) > 15
    assert not left_out


def test_the_files_that_quick_leaves_out_are_there():
    """A file that moved would be quick without a word."""
    assert [name for name in LONGER if not (TESTS / name).exists()] == []


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and those for type checkers count too."""
    modules = {module_of(path): path for path in FILES}
    graph = {
        name: {one for known, _ in imports(path) for one in (known, known.rpartition(".")[0]) if one in modules}
        for name, path in modules.items()
        if name != "dimred"  # loads its public names on first use
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done or name not in graph:
            return
        for one in sorted(graph[name] - {name}):
            visit(one, (*path, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def private_names(tree: ast.AST) -> set[str]:
    """List the private names that a file of dimred gives to anything: attributes, constants, functions, classes."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def uses_of(private: set[str], tree: ast.AST) -> list[str]:
    """List where a test reaches for private names, by an attribute of another object, an import or a dotted path."""
    uses = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Call(args=[_, ast.Constant(value=str(name)), *_]) if name in private:  # of setattr and the like
                uses.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.Attribute(attr=name) if name in private:
                uses.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.ImportFrom(module=str(module), names=imported) if module.startswith("dimred"):
                uses += [f"line {node.lineno}: {one.name}" for one in imported if one.name.startswith("_")]
            case ast.Constant(value=str(text)):
                words = re.findall(r"\w+(?:\.\w+)+", text)
                uses += [f"line {node.lineno}: {word}" for word in words if set(word.split(".")[1:]) & private]
    return uses


def test_tests_read_no_private_attribute_of_dimred():
    """A test of what a class keeps to itself would hold its writing, not what it does."""
    private = set().union(*(private_names(parsed(path)) for path in FILES))
    private -= {"_replace", "_asdict", "_fields", "_make"}  # of named tuples
    tests = {path.relative_to(ROOT): parsed(path) for path in (ROOT / "tests").rglob("*.py")}
    assert {str(path): uses for path, tree in tests.items() if (uses := uses_of(private, tree))} == {}


@cache
def names_in(tree: ast.Module) -> set[str]:
    names = {one.asname or one.name for one in ast.walk(tree) if isinstance(one, ast.alias)}
    names |= {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    return names | {getattr(one, "name", "") for one in tree.body}


def test_what_tests_and_benchmarks_import_of_dimred_is_there():
    """Benchmarks are rarely run, and would keep the names of what was moved."""
    modules = {module_of(path): parsed(path) for path in FILES}
    missing = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dimred."):
                imported = {one.name for one in node.names if f"{node.module}.{one.name}" not in modules}
                missing += [
                    f"{path.relative_to(ROOT)}: {node.module}.{name}"
                    for name in imported - names_in(modules[node.module])
                ]
    assert missing == []
