"""``dimred bench``: how long a step of stage 1 takes here, as a row of a Markdown table."""

import io
import json
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import Data, DeviceTarget, Overrides
from dimred.errors import ConfigError


def bench(
    data: Data,
    config: Annotated[Path, typer.Option(help="YAML file of stage 1, or a recipe such as digits.")],
    devices: Annotated[int, typer.Option(min=1, help="Devices of this host.")] = 1,
    device_target: DeviceTarget = "CPU",
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Markdown file: the row is added to its table, or begins one.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Make 50 steps of stage 1 with your network, data and ranks, and print what they took as one row.

    The first 10 of them warm up. A step includes the reading of its batch, but no evaluation and no snapshot. Nothing
    is kept.

    Example: dimred bench ./imagenet --config imagenet --devices 8 --device-target Ascend --table bench.md
    """
    from dimred.config import StageOneConfig, config_file, load_config
    from dimred.io.atomic import atomic_write
    from dimred.launch.job import make_job
    from dimred.launch.launcher import launch

    config = config_file(StageOneConfig, config).absolute()
    load_config(StageOneConfig, config, overrides or [])
    if not data.exists():
        raise ConfigError(f"DATA is {str(data)!r}, which is not found")
    if table is not None and (table.is_dir() or not table.absolute().parent.is_dir()):
        raise ConfigError(f"--table is {str(table)!r}, which can't be a file; name one in a folder that is there")
    arguments = [str(data.absolute()), "--config", str(config), "--device-target", device_target]
    arguments += [f"--set={override}" for override in overrides or []]
    printed = io.StringIO()
    with tempfile.TemporaryDirectory(prefix=".dimred-bench-", dir=Path.cwd()) as out, redirect_stdout(printed):
        job = make_job(
            "dimred.pipelines.bench", "bench", arguments, out=Path(out), devices=devices, device_target=device_target
        )
        status = launch(job)
    if status:
        raise typer.Exit(status)
    row = json.loads(printed.getvalue().splitlines()[-1])
    head = [_line(list(row)), _line(["---"] * len(row))]
    print("\n".join([*head, _line(list(row.values()))]))
    if table is not None:
        before = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
        atomic_write(table, "\n".join(with_row(before, head, _line(list(row.values())))) + "\n")


def _line(cells: list[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def with_row(lines: list[str], head: list[str], row: str) -> list[str]:
    """Return the lines of a Markdown file with one more row in the table that has this head, which may be new."""
    if head[0] not in lines:
        return [*lines, *([""] if lines else []), *head, row]
    end = lines.index(head[0])
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return [*lines[:end], row, *lines[end:]]
