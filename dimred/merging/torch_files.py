"""Read the weights in a PyTorch file, with ``torch.load(weights_only=True)``: nothing in the file is executed.

Classes that PyTorch does not know, such as Lightning's hyper-parameters or a user's modules, are replaced by
``_Placeholder``, which keeps what was stored and does nothing. So a pickled ``nn.Module`` can be read without its code,
and TorchScript without running it: its attributes are in the archive like those of a module.
"""

import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from dimred.checkpoints.stored_tensor import reading
from dimred.errors import CheckpointError, DimredError, shown

_OLDEST = (2, 6)  # before it, weights_only=True could be made to run code (CVE-2025-32434)
_INSTALL = "python -m pip install torch --index-url https://download.pytorch.org/whl/cpu"
_AVERAGE_NAME = re.compile(r"(?:^|[\W_])(?:ema|averaged?|averaging|avg|swa|shadow)(?=[\W_\d]|$)", re.IGNORECASE)
_LIGHTNING_KEY = "current_model_state"  # beside it, state_dict is an average: Lightning's WeightAveraging


class Weights(NamedTuple):
    """One mapping name -> tensor in a file.

    Attributes:
        key: where it is, keys joined by dots; empty for the file itself.
        tensors: name -> tensor.
        is_average: whether it is a moving or another average of other weights, as its key, an entry ``n_averaged`` or
            Lightning's ``current_model_state`` beside it tell.
    """

    key: str
    tensors: dict[str, Any]
    is_average: bool = False


def torch_module() -> Any:
    """Import PyTorch.

    Raises:
        DimredError: it is not installed, or so old that reading a file is not safe.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DimredError(
            f"dimred convert needs PyTorch, which is not installed here; its build for CPUs suffices: {_INSTALL}"
        ) from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
        raise DimredError(f"dimred convert needs PyTorch 2.6 or later, not {torch.__version__}; install it: {_INSTALL}")
    return torch


def read_weights(torch: Any, path: Path) -> list[Weights]:
    """Find the weights in a file by its structure: mappings from names to tensors, other than an optimizer's state.

    A mapping may have tensors of its own beside further mappings; both are listed, and the user says which to take.

    Args:
        torch: the module, see ``torch_module``.
        path: the file.

    Returns:
        All weights in the file; none if it holds none.

    Raises:
        CheckpointError: the file is missing, or PyTorch can't read it without executing it.
    """
    try:
        with reading(path):
            content = _content_of(torch, path)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file makes PyTorch raise
        why = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"{path} can't be read by PyTorch {torch.__version__} with weights_only=True ({why}); if it is whole, save "
            "its state_dict anew"
        ) from None
    candidates = list(_weights_in(torch, content, ()))
    is_lightning = any(one.key == _LIGHTNING_KEY for one in candidates)
    return [one._replace(is_average=one.is_average or (is_lightning and one.key == "state_dict")) for one in candidates]


def _content_of(torch: Any, path: Path) -> Any:
    names = _names_in_archive(path)
    if not names:
        return torch.load(path, map_location="cpu", weights_only=True)
    if any(name.endswith("/constants.pkl") for name in names):
        with TemporaryFile(dir=path.parent) as file:
            _copy_without_code(path, file)
            return _load(torch, file)
    return _load(torch, path, mmap=True)


def _names_in_archive(path: Path) -> list[str]:
    """List the entries of a zip archive; none for an older file of PyTorch's, which is a plain pickle."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _load(torch: Any, file: Any, **options: Any) -> Any:
    if not isinstance(file, Path):
        file.seek(0)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    placeholders = [(type(name, (_placeholder_for(name),), {}), name) for name in names]
    if not isinstance(file, Path):
        file.seek(0)
    with torch.serialization.safe_globals(placeholders):
        return torch.load(file, map_location="cpu", weights_only=True, **options)


def _copy_without_code(path: Path, target: Any) -> None:
    """Copy the data of a TorchScript archive; without constants.pkl, PyTorch reads it as an ordinary file."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for entry in source.infolist():
            below = entry.filename.partition("/")[2]
            if below in ("data.pkl", "version", "byteorder") or below.startswith(("data/", ".data/")):
                with source.open(entry) as content, archive.open(entry.filename, "w", force_zip64=True) as copy:
                    while piece := content.read(1 << 20):
                        copy.write(piece)


class _Placeholder:
    """Stands for a class that is not loaded: an instance is an empty OrderedDict that takes items and attributes."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return OrderedDict()


class _Opaque:
    """Stands for one of NumPy's types: an instance takes any state and keeps nothing."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


class _Sequence:
    """Stands for a type that items are appended to, which PyTorch allows of a list only."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return []


def _placeholder_for(name: str) -> type:
    return _Sequence if name == "collections.deque" else _Opaque if name.startswith("numpy.") else _Placeholder


def _weights_in(torch: Any, value: Any, keys: tuple[str, ...]) -> Iterator[Weights]:
    if _is_module(value):
        tensors = dict(_tensors_of_module(torch, vars(value), ""))
        if tensors:
            yield Weights(".".join(keys), tensors, _is_average(keys, tensors))
        return
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping) or {"state", "param_groups"} <= value.keys():  # which an optimizer's state has
        return
    parts = {str(key): part for key, part in value.items() if isinstance(key, str | int)}
    below = [one for key, part in parts.items() for one in _weights_in(torch, part, (*keys, key))]
    yield from below
    tensors = {key: part for key, part in value.items() if isinstance(key, str) and isinstance(part, torch.Tensor)}
    if any(part.is_floating_point() and part.dim() > 0 for part in tensors.values()):
        yield Weights(".".join(keys), tensors, _is_average(keys, tensors))


def _is_average(keys: tuple[str, ...], tensors: Mapping[str, Any]) -> bool:
    return any(map(_AVERAGE_NAME.search, keys)) or "n_averaged" in tensors  # which torch.optim.swa_utils adds


def _is_module(value: Any) -> bool:
    """Return whether a value was an ``nn.Module``, or one of TorchScript."""
    return type(value) is OrderedDict and not value and not {"_modules", "training"}.isdisjoint(vars(value))


def _tensors_of_module(torch: Any, attributes: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield what the state_dict of a module has: its parameters and persistent buffers, and those of its modules."""
    if "_modules" in attributes:
        transient = attributes.get("_non_persistent_buffers_set", ())
        buffers = {name: part for name, part in attributes["_buffers"].items() if name not in transient}
        entries: Mapping[str, Any] = {**attributes["_parameters"], **buffers}
        modules = attributes["_modules"]
    else:  # TorchScript has all of them as attributes
        entries = modules = attributes
    for name, part in entries.items():
        if isinstance(part, torch.Tensor):
            yield prefix + name, part
    for name, part in modules.items():
        if _is_module(part):
            yield from _tensors_of_module(torch, vars(part), f"{prefix}{name}.")


def choose_weights(path: Path, candidates: list[Weights], key: str | None) -> Weights:
    """Choose among the weights in a file: those of ``key``, or the only ones, or the only ones that are no average.

    Args:
        path: the file, for errors.
        candidates: all weights in it.
        key: keys joined by dots; weights below this key are put together as one. None for no key.

    Raises:
        CheckpointError: there are none, none at ``key``, or several and no key.
    """
    if not candidates:
        raise CheckpointError(f"{path} has no mapping from names to arrays of floats, so there are no weights in it")
    choices = ", ".join(f"{one.key or 'the file itself'} ({describe(one)})" for one in candidates)
    if key is not None:
        below = [one for one in candidates if one.key == key or one.key.startswith(f"{key}.")]
        if not below:
            raise CheckpointError(f"key is {key!r}, which has no weights in {path}; there are {choices}")
        tensors = {
            ".".join(filter(None, (one.key[len(key) :].lstrip("."), name))): tensor
            for one in below
            for name, tensor in one.tensors.items()
        }
        if len(tensors) < sum(len(one.tensors) for one in below):
            raise CheckpointError(f"key is {key!r}, below which two arrays in {path} get one name; there are {choices}")
        return Weights(key, tensors, all(one.is_average for one in below))
    raw = [one for one in candidates if not one.is_average]
    if len(raw or candidates) > 1:
        example = shown(max(raw or candidates, key=_n_numbers).key)
        raise CheckpointError(f"{path} has several weights: {choices}; say which, such as key={example}")
    return (raw or candidates)[0]


def describe(weights: Weights) -> str:
    """Return in words whether the weights are an average, and how many tensors and numbers they are."""
    kind = "averaged" if weights.is_average else "raw"
    return f"{kind}, {len(weights.tensors)} tensors, {_n_numbers(weights):,} numbers"


def _n_numbers(weights: Weights) -> int:
    return sum(tensor.numel() for tensor in weights.tensors.values())
