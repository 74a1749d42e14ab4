"""The configuration that a run began with, and pins of everything else that it depends on."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self

from dimred.config import StageOneConfig, load_config
from dimred.data.batches import Batches
from dimred.errors import ConfigError, RunError
from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import PINNED
from dimred.run_files.run_names import CONFIG, PINS, own_config
from dimred.runs.task import Config

_log = logging.getLogger(__name__)

FREE_KEYS = frozenset(
    {
        "epochs",
        "stop",
        "evaluate_every_epochs",
        "checkpoints.every_epochs",
        "checkpoints.keep",
        "save_every_steps",
        "read_every_steps",
        "profile",
        "tensorboard",
        "callback",
    }
)
"""Keys that may change when a run is resumed: they set where it ends, or do not affect its weights. Some
configurations fix some of them; see ``StageConfig.fixed_keys``."""


class Pin(NamedTuple):
    """Something outside a run's folder that the run depends on.

    Attributes:
        digest: stands for the content; equal contents have equal digests.
        path: where it was when the run began; None if it is not a file, or was written into the run's folder.
    """

    digest: str
    path: str | None = None


def pins_of_data(data: Path, images: Mapping[str, Batches]) -> dict[str, Pin]:
    """Return a pin for each split, such as ``DATA/train``; its digest begins with the number of samples."""
    pins = {}
    for split, part in images.items():
        of_classes = f" in {len(part.classes)} classes" if part.classes else ""
        content = f"{part.n_images} samples{of_classes}, digest {part.digest()[:12]}"
        pins[f"DATA/{split}"] = Pin(content, str(data.resolve()))
    return pins


@dataclass(frozen=True)
class Begun(Generic[Config]):
    """A run that has begun, as described by ``config.yaml`` and ``pins.json`` in its folder.

    Attributes:
        config: the configuration to continue with.
        pins: what the run depends on outside its folder: ``devices``, ``DATA/train``, ``WEIGHTS`` and so on.
    """

    config: Config
    pins: dict[str, Pin]

    @classmethod
    def open(
        cls, out: Path, stage: type[Config], config: Path | None = None, overrides: Sequence[str] = ()
    ) -> Self | None:
        """Read the configuration and the pins of the run in a folder, and set the free keys that are given.

        Args:
            out: the run's folder.
            stage: the model of its configuration.
            config: the file that was given; None for none.
            overrides: each ``key=value`` that was given.

        Returns:
            The run; None if none has begun there.

        Raises:
            ConfigError: a key that is not free is given with another value (the message names all such keys); or the
                run's own configuration is damaged.
            RunError: the run's pins are damaged, or have an unknown version.
        """
        pins = _read_pins(out / PINS)
        if pins is None:
            _log.info(f"--resume: no run has begun in {out}; a new one begins")
            return None
        own = own_config(out)
        values = load_config(stage, own).model_dump(mode="json", exclude_unset=True)
        given = load_config(stage, config or own, overrides).model_dump(mode="json", exclude_unset=True)
        if isinstance(given.get("epochs"), str):  # a fraction, which became a number when the run began
            _log.info(f"--resume: epochs stays {values['epochs']}, not {given['epochs']}; give a number to change it")
            del given["epochs"]
        changes = list(_differences(values, given))
        free = FREE_KEYS - stage.checked(values).fixed_keys
        refused = [
            f"\n  {key}: {json.dumps(old)} -> {json.dumps(new)}"
            for key, old, new in changes
            if not any(f"{key}.".startswith(f"{prefix}.") for prefix in free)
        ]
        if refused:
            at_checkpoint = ", perhaps from one of its checkpoints with --from" if stage is StageOneConfig else ""
            raise ConfigError(
                f"the run in {str(out)!r} was begun with other values:{''.join(refused)}\n--resume continues with the "
                f"ones in its {CONFIG}, so leave these out; or begin a new run with another --out{at_checkpoint}"
            )
        for key, _, new in changes:
            *sections, name = key.split(".")
            place = values
            for section in sections:
                place = place[section]
            place[name] = new
        return cls(stage.checked(values), pins)

    def check(self, pins: Mapping[str, Pin]) -> None:
        """Check that everything the run depends on has the same content as before, wherever it is now.

        Args:
            pins: the pins of everything it depends on now. A split that was read only then, or is read only now, is no
                difference.

        Raises:
            ConfigError: some content has changed; the message names all changes.
        """
        changes = []
        for name in dict.fromkeys([*self.pins, *pins]):
            before = self.pins.get(name)
            now = pins.get(name)
            is_unread = name.startswith("DATA/") and (before is None or now is None)
            if not is_unread and (before and before.digest) != (now and now.digest):
                changes.append(f"\n  {name}: {_in_words(before)} -> {_in_words(now)}")
        if changes:
            raise ConfigError(
                f"the inputs that the run was begun with have changed:{''.join(changes)}\n--resume needs the same "
                "inputs; restore them, or begin a new run with another --out"
            )


def _in_words(pin: Pin | None) -> str:
    if pin is None:
        return "none"
    return pin.digest if pin.path is None else f"{pin.digest} ({pin.path})"


def write_pins(out: Path, pins: Mapping[str, Pin]) -> None:
    """Write ``pins.json``. Once the file exists, the run has begun, and rank 0 has a state to resume from."""
    write_checksummed(out / PINS, PINNED, {"pins": {name: list(pin) for name, pin in pins.items()}})


def _read_pins(path: Path) -> dict[str, Pin] | None:
    """Read a run's pins, or None if there are none; RunError if they are damaged, or have an unknown version."""
    try:
        content = read_checksummed(path, PINNED)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} can't be used ({error}); restore it, or begin a new run with another --out") from error
    return {name: Pin(*pin) for name, pin in content["pins"].items()}


def _differences(own: Any, given: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, old, new) for each given value that differs; a section that was or becomes null is one value."""
    if isinstance(own, Mapping) and isinstance(given, Mapping):
        for name, value in given.items():
            yield from _differences(own.get(name), value, f"{key}.{name}".lstrip("."))
    elif own != given:
        yield key, own, given
