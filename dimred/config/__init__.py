"""One validated model per stage, loaded from YAML; an unknown key is an error."""

from dimred.config.base import NO_DECAY_PATTERNS
from dimred.config.files import config_file, config_of_stage_2, config_text, load_any_config, load_config
from dimred.config.parts import (
    ClippingConfig,
    CooldownConfig,
    DataConfig,
    EmaConfig,
    LossScaleConfig,
    ModelConfig,
    OptimizerConfig,
    PrecisionConfig,
    ScheduleConfig,
    StopConfig,
)
from dimred.config.search import SearchOptions
from dimred.config.stages import StageConfig, StageOneConfig, StageTwoConfig

__all__ = [
    "NO_DECAY_PATTERNS",
    "ClippingConfig",
    "CooldownConfig",
    "DataConfig",
    "EmaConfig",
    "LossScaleConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "ScheduleConfig",
    "SearchOptions",
    "StageConfig",
    "StageOneConfig",
    "StageTwoConfig",
    "StopConfig",
    "config_file",
    "config_of_stage_2",
    "config_text",
    "load_any_config",
    "load_config",
]
