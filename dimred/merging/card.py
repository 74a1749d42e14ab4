"""A merge described for people, once: for the terminal, and as the model card of an output folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dimred.io.atomic import atomic_write
from dimred.merging.candidates import SPLITS, scores_of
from dimred.merging.lora import CONFIG
from dimred.merging.record import CARD, INPUT_CARD

_STILL_TRUE = (
    "library_name", "base_model", "license", "license_name", "license_link", "language", "datasets", "pipeline_tag"
)  # fmt: skip


def tables_of(record: Mapping[str, Any]) -> list[tuple[Sequence[str], list[list[str]]]]:
    """List the tables of a merge, (headings, rows): the inputs, and with a metric the best candidates."""
    inputs = [[one["path"], str(one["step"]), f"{one['coefficient']:.4g}"] for one in record["checkpoints"]]
    tables: list[tuple[Sequence[str], list[list[str]]]] = [(("checkpoint", "step", "coefficient"), inputs)]
    if "table" in record:
        rows = [["*" if row["kept"] else "", row["kind"], row["name"], *scores_of(row)] for row in record["table"]]
        tables.append((("kept", "kind", "candidate", *SPLITS), rows))
    return tables


def sentences_of(record: Mapping[str, Any]) -> list[str]:
    """List what is to be said of a merge: how the coefficients came about, LoRA, and BatchNorm."""
    how = f"Profile: {record.get('profile')}."
    if "table" in record:
        how = f"Kept {record['kept']['name']}: {record['why']}. {record['evaluations']} evaluations; {record['ended']}."
    lora = [f"LoRA: {record['lora']}."] if "lora" in record else []
    return [how, *lora, f"BatchNorm: {record['batch_norm']}."]


def write_card(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the model card of an output folder; that of the last input is in ``README.input.md`` beside it."""
    parts = [
        f"---\n{yaml.safe_dump(_front_matter(folder), sort_keys=False, allow_unicode=True)}---",
        f"# {folder.name}",
        f"An average of {len(record['checkpoints'])} checkpoints of one training run, made by dimred "
        f"{record['versions']['dimred']} from their files alone.",
        *sentences_of(record),
        *(_markdown(headings, rows) for headings, rows in tables_of(record)),
    ]
    if "table" in record:
        error = "Scores are means ± their standard errors, where the metric tells these"
        parts.append(f"{error}; {record['better']} is better. The metric: `{record['metric']}`.")
    parts.append(f"The call, as a command:\n\n```sh\n{record['command']}\n```")
    if (folder / INPUT_CARD).exists():
        parts.append(f"[{INPUT_CARD}]({INPUT_CARD}) is the last input's card; what it measured is not this network.")
    atomic_write(folder / CARD, "\n\n".join(parts) + "\n")


def _front_matter(folder: Path) -> dict[str, Any]:
    """Make the metadata that hubs read, with what the last input's card says that is as true of the average."""
    found: dict[str, Any] = {}
    if (folder / CONFIG).exists():
        found["library_name"] = "peft"
        base = json.loads((folder / CONFIG).read_bytes()).get("base_model_name_or_path")
        if base and not Path(base).exists():  # a folder of this machine means nothing on a hub
            found["base_model"] = base
    elif (folder / "config.json").exists():
        found["library_name"] = "transformers"
    if (folder / INPUT_CARD).exists():
        text = (folder / INPUT_CARD).read_text(encoding="utf-8", errors="replace")
        try:
            given = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else {}
        except (yaml.YAMLError, IndexError):
            given = {}
        found |= {key: given[key] for key in _STILL_TRUE if isinstance(given, dict) and key in given}
    return found | {"tags": ["merge", "dimred", *(["lora"] if (folder / CONFIG).exists() else [])]}


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
