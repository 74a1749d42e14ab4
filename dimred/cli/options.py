"""In a Python function's errors, show its arguments as a command's options."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dimred.errors import DimredError


@contextmanager
def options_in_errors(*arguments: str, **other_names: str) -> Iterator[None]:
    """Rewrite errors from the block: ``lora_rank is 0`` as ``--lora-rank is 0``, ``order='name'`` as ``--order name``.

    Args:
        arguments: the function's arguments that are options with the same name.
        other_names: argument -> its option, for options with another name.

    Raises:
        DimredError: the error from the block, with the options in its message.
    """
    options = {argument: f"--{argument.replace('_', '-')}" for argument in arguments} | other_names
    try:
        yield
    except DimredError as error:
        error.args = (_with_options(error, options),)
        raise


def _with_options(error: DimredError, options: Mapping[str, str]) -> str:
    message = str(error)
    if error.argument in options:
        message = options[error.argument] + message.removeprefix(error.argument)
    for setting in error.settings:
        argument, _, value = setting.partition("=")
        words = [options[argument], value.strip("'")]
        message = message.replace(setting, " ".join(word for word in words if word not in ("", "True")))
    return message
