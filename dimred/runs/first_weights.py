"""The first weights of a network from another network's checkpoint, ``model.weights``."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from mindspore import Parameter, nn

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.layout import arrays_digest
from dimred.errors import ConfigError, number_of
from dimred.train_step.optimizer_state import check_no_gradient_point
from dimred.vectors.parameters import FLOATS, put_array

_log = logging.getLogger(__name__)

# Names in dimred's full checkpoints that are not named after a weight.
_OF_TRAINING = ("epoch", "loss_scale.*", "schedule_free.*")


@dataclass(frozen=True, eq=False)
class FirstWeights:
    """A checkpoint that a network begins from, and the arrays that the network takes from it.

    Attributes:
        path: the file.
        digest: digest of all arrays in the file.
        arrays: name -> value, for each parameter that is loaded.
    """

    path: Path
    digest: str
    arrays: Mapping[str, np.ndarray]

    def put(self, network: nn.Cell) -> None:
        """Set the network's parameters to the arrays; the others keep their values."""
        for parameter in network.get_parameters():
            if parameter.name in self.arrays:
                put_array(parameter, self.arrays[parameter.name])


def read_first_weights(path: Path, new: Sequence[str], network: nn.Cell) -> FirstWeights:
    """Read a checkpoint, and select every array that has the name and shape of a network parameter.

    ``new`` must name everything else: parameters that keep their fresh values, and arrays that no parameter takes. The
    only exception is training state: whole numbers, arrays named ``<state>.<weight>`` with the shape of that weight in
    the file (the naming of MindSpore's optimizers and ``EMA``), and dimred's epoch and loss scale.

    Args:
        path: the file.
        new: patterns for the names of parameters that keep their values, and of arrays that are not used; ``*`` stands
            for any text.
        network: the network.

    Raises:
        CheckpointError: the file can't be read.
        ConfigError: something is neither taken nor named, or a pattern matches nothing; the message lists all of it.
    """
    title = f"model.weights {str(path)!r}"
    in_file = read_checkpoint(path)
    check_no_gradient_point(in_file, title)
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    state = {name for name in in_file.keys() - parameters.keys() if _is_state(name, in_file)}
    is_new = {name for name in [*parameters, *in_file] if any(fnmatchcase(name, pattern) for pattern in new)}
    problems = [
        f"model.new has {pattern!r}, which matches nothing"
        for pattern in new
        if not any(fnmatchcase(name, pattern) for name in is_new)
    ]
    wanted = {name: parameter for name, parameter in parameters.items() if name not in is_new}
    problems += _misfits(wanted, in_file)
    problems += [
        f"{name} {array.shape} is in the file, but not in the network"
        for name, array in in_file.items()
        if name not in parameters and name not in state and name not in is_new
    ]
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(
            f"{title} does not fit the network:{listed}\nName what stays new, or is left out, with patterns in "
            "model.new, such as --set 'model.new=[\"classifier.*\"]'"
        )
    if not wanted:
        raise ConfigError(f"{title} gives the network nothing, because model.new names all of it; leave both out")
    _log.info(
        f"model.weights {str(path)!r}: {len(wanted):,} of {number_of(len(parameters), 'parameter')} begin with its "
        f"values, the others are new; {number_of(len(state), 'array')} of training state are left out"
    )
    return FirstWeights(path, arrays_digest(in_file), {name: in_file[name] for name in wanted})


def _misfits(wanted: Mapping[str, Parameter], in_file: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield a line about each parameter whose array is missing, or has a different shape or kind of number."""
    for name, parameter in wanted.items():
        array = in_file.get(name)
        if array is None:
            yield f"{name} {parameter.shape} is in the network, but not in the file"
        elif array.shape != parameter.shape or array.dtype.kind not in _kinds(parameter):
            yield (
                f"{name} is {array.dtype} {array.shape} in the file, but {parameter.dtype} {parameter.shape} in the "
                "network"
            )


def _is_state(name: str, in_file: Mapping[str, np.ndarray]) -> bool:
    """Return whether an array in a file is training state."""
    array = in_file[name]
    _, _, weight = name.partition(".")
    is_slot = weight in in_file and in_file[weight].shape == array.shape
    return array.dtype.kind != "f" or is_slot or any(fnmatchcase(name, pattern) for pattern in _OF_TRAINING)


def _kinds(parameter: Parameter) -> str:
    """Return the NumPy type kinds that a parameter takes."""
    return "f" if parameter.dtype in FLOATS else "biu"
