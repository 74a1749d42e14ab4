"""The search step of stage 2."""

from mindspore import nn

from dimred.builders.handover import Handover, build_cooldown_optimizer
from dimred.builders.loss_and_metric import build_loss
from dimred.builders.steps import build_parts
from dimred.config import SearchConfig, SearchOptions, StageTwoConfig
from dimred.distributed.ranks import ALONE, Ranks
from dimred.search_step.basis_check import Basis
from dimred.search_step.step import SubspaceTrainStep
from dimred.train_step.schedule import make_rates


def build_search_step(
    config: StageTwoConfig,
    search: SearchConfig,
    handover: Handover | None,
    network: nn.Cell,
    basis: Basis,
    steps_per_epoch: int,
    ranks: Ranks = ALONE,
) -> SubspaceTrainStep:
    """Build stage 2's step with a search.

    Args:
        config: of stage 2.
        search: its section. The rate of ``sgd`` stays, or falls linearly to 0 at the end.
        handover: of stage 1, for a cooldown outside the subspace; None without a cooldown.
        network: with the weights to begin from.
        basis: of its trainable weights.
        steps_per_epoch: of stage 2.
        ranks: of the job.
    """
    optimizer = None
    if config.cooldown is not None and handover is not None:
        optimizer = build_cooldown_optimizer(
            handover, config.cooldown, network, steps_per_epoch, config.n_epochs, ranks
        )
    options = {name: getattr(search, name) for name in SearchOptions.model_fields}
    if search.learning_rate_schedule == "linear":
        options["learning_rate"] = make_rates("linear", search.learning_rate, 0, config.n_epochs * steps_per_epoch)
    parts = build_parts(config, network)
    return SubspaceTrainStep(build_loss(config, network), basis, optimizer=optimizer, ranks=ranks, **parts, **options)
