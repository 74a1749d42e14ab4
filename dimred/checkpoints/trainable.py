"""Tell which entries of a checkpoint are weights of the network, if neither a manifest nor the network says so.

The rules ask how entries relate to each other, not what they are called, because every optimizer has names of its own:

- An entry ``PREFIX.NAME`` or ``PREFIX_NAME`` is state of the weight NAME if it has NAME's shape, NAME's shape without
  its last or second-last dimension (factored moments), or is one number, and if there is such an entry for every
  weight. Where an optimizer's counter of steps is in the file, it may have been given only some of the weights.
- What has state of its own is a weight: a module that repeats other names, or a single number such as a temperature.
- Beside an optimizer's state, a single number without state is a counter or a setting.
"""

import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.stored_tensor import StoredTensor
from dimred.errors import CheckpointError, shown

# Names of a normalisation's running statistics in PyTorch (with their count), in MindSpore and Keras, and in Paddle.
# Flax calls them mean and var: Linen keeps them below batch_stats, NNX beside each other in the layer.
_STATISTICS = re.compile(
    r"(?:.*_)?(?:running_mean|running_var|num_batches_tracked|moving_mean|moving_variance)|_mean|_variance"
)
_LAST = re.compile(r"(?P<above>(?:.*?[./])??)(?P<last>[^./:]+)(?P<ending>(?:[./](?:raw_)?value)?(?::\d+)?)")
_PARTNERS = {"mean": "var", "var": "mean"}
_SEPARATORS = re.compile("[./_]")
# Keras calls it seed_generator_state, Flax rngs, PyTorch rng_state.
_RANDOM_STATE = re.compile(r"(?:^|[./_])(?:rngs?|seed|seed_generator)(?:[./_]|$)", re.IGNORECASE)
# What names a copy of the weights, or a moment; and the words in whose place it may stand.
_COPY_OF_WEIGHTS = re.compile(r"(?<![a-z])(?:ema|swa|averaged?|avg|shadow|exp_avg_sq|exp_avg|target)(?![a-z])")
_COPY_WORDS = re.compile(
    rf"{_COPY_OF_WEIGHTS.pattern}|(?<![a-z])(?:online|model|module|net|network|_orig_mod)(?![a-z])"
)
# Each of MindSpore's optimizers counts its steps in one of these, and keeps its rates in the others.
_STEPS = frozenset({"global_step", "state_step", "step_t"})
_RATES = re.compile(r"learning_rate(_group_\d+)?")

Index = Mapping[str, StoredTensor]


class Trainable(NamedTuple):
    """The entries of a checkpoint that count as weights.

    Attributes:
        names: all of them, in the file's order.
        doubtful: those of them that may also be something else: a note such as an accuracy, or an optimizer's state.
    """

    names: tuple[str, ...]
    doubtful: tuple[str, ...]


def is_statistic(name: str, index: Index | None = None) -> bool:
    """Return whether an entry is a running statistic of a normalisation, or the count of its batches.

    Args:
        name: the entry's name, which may end as Keras's variables (``:0``) and those of Flax NNX (``.value``) do.
        index: all entries, to recognise a ``mean`` and a ``var`` of one shape in one layer.
    """
    if not (match := _LAST.fullmatch(name)):
        return False
    above, last, ending = match.groups()
    if last not in _PARTNERS:
        return _STATISTICS.fullmatch(last) is not None
    if "batch_stats" in re.split("[./]", above):
        return True
    partner = f"{above}{_PARTNERS[last]}{ending}"
    return index is not None and partner in index and index[partner].shape == index[name].shape != ()


def own_statistics(names: Sequence[str], weights: Collection[str]) -> list[str]:
    """Leave out statistics of a copy of the weights that is not averaged, such as ``ema.NAME`` beside NAME.

    Args:
        names: all statistics.
        weights: the weights.
    """
    known = {*names}
    ends = ((name, separator.end()) for name in names for separator in _SEPARATORS.finditer(name))
    prefixes = {name[:end] for name, end in ends if name[end:] in known}
    copies = tuple(one for one in prefixes if not any(weight.startswith(one) for weight in weights))
    return [name for name in names if not name.startswith(copies)]


def is_counter(name: str, tensor: StoredTensor) -> bool:
    """Return whether an entry is a running statistic, the state of a random generator, or a single number."""
    return is_statistic(name) or _is_single(tensor) or _RANDOM_STATE.search(name) is not None


def trainable_layout(index: Index, path: str | os.PathLike[str], *, refuse_doubtful: bool = False) -> WeightLayout:
    """Derive which entries of a checkpoint are trainable weights; see ``trainable_entries``.

    Args:
        index: name -> place of each tensor.
        path: the checkpoint's path, for the error.
        refuse_doubtful: whether to raise if an entry may be a weight or not, instead of taking it for one.

    Returns:
        The layout of the weights, in the order of ``index``.

    Raises:
        CheckpointError: nothing is left, or an entry is doubtful.
    """
    names, doubtful = trainable_entries(index)
    if not names:
        raise CheckpointError(
            f"{path} has no trainable weights: its {len(index)} entries are counters, statistics or state."
        )
    if doubtful and refuse_doubtful:
        more = f" and {len(doubtful) - 1} more" if len(doubtful) > 1 else ""
        raise CheckpointError(
            f"{path}: the entry {shown(doubtful[0])}{more} may be a weight, or an optimizer's state or a note beside "
            "the weights. Say which entries are weights: --names-from with a checkpoint of the network alone, or "
            "layout or network in Python."
        )
    return WeightLayout.from_weights({name: index[name] for name in names})


def trainable_entries(index: Index) -> Trainable:
    """Derive which entries of a checkpoint are trainable weights.

    Left out are numbers that aren't floats, running statistics, an optimizer's state, and its counters and settings.

    Args:
        index: name -> place of each tensor, in the file's order.

    Returns:
        The names of the weights, and which of them are doubtful.
    """
    floats = {name: tensor for name, tensor in index.items() if tensor.is_float and not is_statistic(name, index)}
    has_optimizer = any(map(_counts_steps, index, index.values()))
    owners, state, doubtful = _owners_and_state(floats, has_optimizer=has_optimizer)
    if has_optimizer and not owners:
        doubtful = {*floats}
    doubtful |= _further_copies({name: tensor for name, tensor in floats.items() if name not in state})
    first_in_module = next((number for number, name in enumerate(index) if _in_module(name)), len(index))
    names = []
    for number, (name, tensor) in enumerate(index.items()):
        is_left_out = name not in floats or name in state or _RATES.fullmatch(name.rpartition(".")[2])
        if name in owners:
            names.append(name)
        elif is_left_out or (owners and (_is_single(tensor) or not _in_module(name))):
            continue
        elif _is_single(tensor) and not _in_module(name):
            # MindSpore writes a network's own numbers before those of its modules, and notes after all of them.
            is_ckpt = tensor.file.suffix == ".ckpt"
            if not (is_ckpt and tensor.shape == () and number > first_in_module):
                names.append(name)
            if not (is_ckpt and number < first_in_module < len(index)):
                doubtful.add(name)
        else:
            names.append(name)
    return Trainable(tuple(names), tuple(name for name in names if name in doubtful))


def _further_copies(floats: Index) -> set[str]:
    """Return the entries that are named as an average or a moment of another one of the same shape.

    Such are ``ema_model.NAME`` beside ``online_model.NAME``, ``NAME.exp_avg`` beside NAME, and ``model_ema.ab`` beside
    ``model.a.b``: but for the words about the copy and the signs between words, their names are equal.
    """
    groups: defaultdict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, tensor in floats.items():
        groups[re.sub(r"[\W_]", "", _COPY_WORDS.sub("", name)), tensor.shape].append(name)
    return {
        name
        for group in groups.values()
        if not all(map(_COPY_OF_WEIGHTS.search, group))
        for name in group
        if _COPY_OF_WEIGHTS.search(name)
    }


def _owners_and_state(floats: Index, *, has_optimizer: bool) -> tuple[set[str], set[str], set[str]]:
    """Return the weights that have state; the state; and entries that may be state or weights."""
    owners: set[str] = set()
    state: set[str] = set()
    doubtful: set[str] = set()
    stems = sorted({name.partition(".")[0] + "." for name in floats if "." in name}) if has_optimizer else []
    for stem in ("", *stems):  # a cell of the user's own puts its names for network and optimizer before all others
        names_by_prefix, roots = _names_with_state(floats, state, stem)
        for prefix, rests in sorted(names_by_prefix.items(), key=lambda item: (-len(item[1]), item[0])):
            names = {rest for rest in rests if prefix + rest not in owners}
            is_module = any(root.startswith(prefix) for root in roots)
            if names >= roots or (has_optimizer and not stem and not is_module):
                owners |= {stem + name for name in names} - state
                state |= {prefix + name for name in names}
            elif not stem and not is_module and 2 * len(names & roots) > len(roots):
                doubtful |= {prefix + name for name in names}
    return owners - state, state, doubtful - owners


def _names_with_state(floats: Index, state: set[str], stem: str) -> tuple[dict[str, set[str]], set[str]]:
    """Collect what may be state of the entries whose names begin with ``stem``, with ``stem`` removed from these names.

    Returns:
        Prefix -> the names that have such state; and the names of arrays that are themselves not state of others.
    """
    weights = {name[len(stem) :]: name for name in floats if name.startswith(stem) and name not in state}
    names_by_prefix: defaultdict[str, set[str]] = defaultdict(set)
    dependents = set()
    for name, tensor in floats.items():
        for separator in _SEPARATORS.finditer(name):
            prefix, rest = name[: separator.end()], name[separator.end() :]
            if prefix != stem and rest in weights and _is_shape_of_state(tensor.shape, floats[weights[rest]].shape):
                names_by_prefix[prefix].add(rest)
                dependents.add(name)
    roots = {rest for rest, name in weights.items() if name not in dependents and not _is_single(floats[name])}
    return names_by_prefix if roots or not stem else {}, roots


def _is_shape_of_state(shape: tuple[int, ...], of_weight: tuple[int, ...]) -> bool:
    factors = (of_weight[:-1], of_weight[:-2] + of_weight[-1:]) if len(of_weight) > 1 else ()
    return shape == of_weight or shape in factors or shape in ((), (1,))


def _counts_steps(name: str, tensor: StoredTensor) -> bool:
    return name.rpartition(".")[2] in _STEPS and tensor.dtype == np.int32  # a note of the same name is an int64


def _in_module(name: str) -> bool:
    return "." in name or "/" in name


def _is_single(tensor: StoredTensor) -> bool:
    return math.prod(tensor.shape) <= 1
