"""What the files and folders of a run are called. Each name stands here and nowhere else."""

# Of every run.
CONFIG = "config.yaml"
PHASES = "phases.json"
VERSIONS = "versions.json"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"  # folder of event files
STATES = "resume"
LOCK = ".lock"
MINDSPORE_LOG = "mindspore.log"

# In a rank's folder, from its launcher.
RANK_LOG = "train.log"
ENVIRONMENT_LOG = "env.log"
MSRUN_LOGS = "msrun"

# What may stand in a folder without being results of a run.
NOT_RESULTS = frozenset({LOCK, MINDSPORE_LOG, RANK_LOG, ENVIRONMENT_LOG, MSRUN_LOGS})

# Of stage 1.
STAGE_1_CHECKPOINTS = "checkpoint_stage_1"
SNAPSHOTS = "checkpoint_pca"  # inside it
MANIFEST = "manifest.json"  # of a folder of snapshots

# Of the PCA.
BASIS = "pca_mat.npy"
BASIS_METADATA = "pca_mat.h5"
UNFINISHED = ".unfinished"  # ends the name of the folder in which a basis is made

# Of stage 2.
STAGE_2_CHECKPOINTS = "checkpoint_stage_2"
SUBSPACE_PATH = "subspace_path.json"
RESULT = "result.json"
