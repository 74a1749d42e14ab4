"""Replace the arguments of a Python function by the options of a command in the function's errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dimred.errors import DimredError

_OTHER_NAMES = {"overwrite": "force", "kind": "basis"}  # argument -> option


@contextmanager
def options_in_errors(*arguments: str) -> Iterator[None]:
    """Rewrite errors from the block: ``lora_rank is 0`` as ``--lora-rank is 0``, ``order='name'`` as ``--order name``.

    Args:
        arguments: the arguments that errors may name.

    Raises:
        DimredError: the error from the block, of the same type, with the options in its message.
    """
    try:
        yield
    except DimredError as error:
        names = "|".join(arguments)
        value = r"(?=['\"\d-]|True|False|inf|nan)"  # a file or a folder may be called "last", too
        pattern = rf"(?<![\w'/-])(?:another ({names})\b|({names})(?:( is ){value}|=(?:True\b|'([\w.-]*)'|(\d+))?))"
        error.args = (re.sub(pattern, _as_option, str(error)),)
        raise


def _as_option(match: re.Match[str]) -> str:
    another, argument, verb, text, number = match.groups()
    name = another or argument
    option = f"--{_OTHER_NAMES.get(name, name).replace('_', '-')}"
    if another:
        return f"another {option}"
    value = "''" if text == "" else text or number
    return option + (verb or "") + (f" {value}" if value else "")
