"""Errors name their arguments in fields, from which the command line shows its options."""

import ast
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

import dimred
from dimred.cli.options import options_in_errors
from dimred.errors import ConfigError, StoppedError, check_choice, check_number, check_type
from dimred.merging.convert import convert

FUNCTIONS = (dimred.merge, dimred.fit_basis, convert)
PACKAGE = Path(dimred.__file__).parent


def message_of(error: Exception) -> str:
    names = ("out", "lora_rank", "order")
    with pytest.raises(type(error)) as shown, options_in_errors(*names, kind="--basis", overwrite="--force"):
        raise error
    assert shown.value is error
    return str(error)


def test_the_argument_at_the_beginning_and_the_settings_named_are_options_then() -> None:
    error = ConfigError("lora_rank is 0, and lora_rank is no path", argument="lora_rank")
    assert message_of(error) == "--lora-rank is 0, and lora_rank is no path"
    error = ConfigError(
        "out is 'out'; use order='name', order=3, overwrite=True or kind=",
        argument="out",
        settings=["order='name'", "order=3", "overwrite=True", "kind="],
    )
    assert message_of(error) == "--out is 'out'; use --order name, --order 3, --force or --basis"
    assert message_of(ConfigError("series is 3; no option", argument="series")) == "series is 3; no option"
    stopped = StoppedError(2, "3 scores; go on with overwrite=True", settings=["overwrite=True"])
    assert message_of(stopped) == "stopped by ctrl-C; 3 scores; go on with --force"


def test_checks_say_which_argument_they_refuse() -> None:
    for check in (
        lambda: check_number("out", 0, at_least=1),
        lambda: check_type("out", 0, str, "a path"),
        lambda: check_choice("out", 0, ["a"]),
    ):
        with pytest.raises(ConfigError, match=r"^--out is 0; "), options_in_errors("out"):
            check()


def raised() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield where an error is raised in code that a command calls with options, its message, and the call."""
    for package in ("averaging", "checkpoints", "io", "merging", "subspace"):
        for path in (PACKAGE / package).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("Error"):
                    parts = getattr(node.args[0], "values", [node.args[0]])
                    texts = [part.value if isinstance(part, ast.Constant) else "..." for part in parts]
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", "".join(map(str, texts)), node


def test_each_error_about_an_option_has_it_in_a_field() -> None:
    names = "|".join({name for function in FUNCTIONS for name in signature(function).parameters} | {"key"})
    wrong, n_begin, n_settings = [], 0, 0
    for place, message, call in raised():
        fields = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        beginning = re.match(rf"({names}) is ", message)
        if beginning:
            n_begin += 1
            if fields.get("argument") != repr(beginning[1]):
                wrong.append(f"{place}: argument")
        settings = set(re.findall(rf"\b({names})=", message))
        n_settings += len(settings)
        if not all(f"{setting}=" in fields.get("settings", "") for setting in settings):
            wrong.append(f"{place}: settings")
    assert not wrong
    assert n_begin > 20
    assert n_settings > 10
