"""Build networks, data, losses and steps from a configuration; the packages that define these do not know it."""

from dimred.builders.handover import build_cooldown_step as build_cooldown_step
from dimred.builders.steps import build_train_step as build_train_step
from dimred.builders.task import build_data as build_data
from dimred.builders.task import build_loss as build_loss
from dimred.builders.task import build_network as build_network
from dimred.builders.task import build_scores as build_scores
from dimred.builders.task import build_splits as build_splits
from dimred.builders.task import check_ranks as check_ranks
from dimred.builders.task import check_scores as check_scores
from dimred.builders.task import with_workers_of_host as with_workers_of_host
