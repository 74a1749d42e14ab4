"""What a run will take of disk and memory, at most."""

from mindspore import nn

from dimred.config import StageOneConfig, StageTwoConfig

_FLOAT = 4
_STATES = 3  # the newest two, and the one being written


def stage_1_disk(config: StageOneConfig, network: nn.Cell) -> int:
    """Bytes of a whole stage 1: snapshots, full checkpoints and states, one more of each while it is written."""
    weights, everything = _sizes(network)
    state = everything + 2 * weights + (everything if config.ema.decay else 0)  # LAMB keeps two moments
    checkpoints = min(config.checkpoints.keep, config.epochs // config.checkpoints.every_epochs + 1) + 1
    snapshots = snapshots_in_the_end(config) + 1
    return _FLOAT * (snapshots * weights + (checkpoints + _STATES) * state)


def snapshots_in_the_end(config: StageOneConfig) -> int:
    """How many snapshots a whole stage 1 leaves."""
    taken = max(config.epochs - config.snapshots.first_epoch + 1, 0) * config.snapshots.per_epoch
    return min(config.snapshots.keep, taken)


def stage_2_disk(config: StageTwoConfig, network: nn.Cell, fits_basis: bool) -> int:
    """Bytes of a whole stage 2: a checkpoint of the start, of each epoch and of the end, states, the basis it fits."""
    weights, everything = _sizes(network)
    state = 2 * everything + weights
    basis = (config.n_components + 2) * weights if fits_basis else 0
    return _FLOAT * ((config.epochs + 3) * 2 * everything + _STATES * state + basis)


def stage_2_memory(config: StageTwoConfig, network: nn.Cell) -> int:
    """Bytes of the basis, which every step reads twice, and of the vectors beside it."""
    weights, _ = _sizes(network)
    return _FLOAT * (config.n_components + 8) * weights


def _sizes(network: nn.Cell) -> tuple[int, int]:
    """Trainable weights, and all parameters."""
    everything = sum(parameter.size for parameter in network.get_parameters())
    return sum(parameter.size for parameter in network.trainable_params()), everything
