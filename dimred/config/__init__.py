"""One YAML file for both stages and a validated model of each; an unknown key is an error."""

from dimred.config.base import NO_DECAY_PATTERNS as NO_DECAY_PATTERNS
from dimred.config.base import flatten as flatten
from dimred.config.cooldown import CooldownConfig as CooldownConfig
from dimred.config.files import config_file as config_file
from dimred.config.files import config_text as config_text
from dimred.config.files import load_config as load_config
from dimred.config.files import recipe_names as recipe_names
from dimred.config.methods import MethodConfig as MethodConfig
from dimred.config.parts import DataConfig as DataConfig
from dimred.config.parts import EmaConfig as EmaConfig
from dimred.config.parts import LossScaleConfig as LossScaleConfig
from dimred.config.parts import ModelConfig as ModelConfig
from dimred.config.parts import OptimizerConfig as OptimizerConfig
from dimred.config.parts import PartsOfStep as PartsOfStep
from dimred.config.parts import PrecisionConfig as PrecisionConfig
from dimred.config.parts import ScheduleConfig as ScheduleConfig
from dimred.config.parts import StopConfig as StopConfig
from dimred.config.search import N_COMPONENTS as N_COMPONENTS
from dimred.config.search import N_COMPONENTS_NAMES as N_COMPONENTS_NAMES
from dimred.config.search import SearchConfig as SearchConfig
from dimred.config.search import SearchOptions as SearchOptions
from dimred.config.stages import StageConfig as StageConfig
from dimred.config.stages import StageOneConfig as StageOneConfig
from dimred.config.stages import StageTwoConfig as StageTwoConfig
