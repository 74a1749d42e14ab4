#!/usr/bin/env bash
# Stage 2 on all devices. After stage 1 with the recipe imagenet, run_stage_1.sh's default, it searches in the
# subspace of stage 1's snapshots.
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_stage.sh"
run_stage 2 "DATA WEIGHTS [PCA_MAT]" "  DATA      folder with train/<class>/*.JPEG and val/<class>/*.JPEG
  WEIGHTS   stage 1's last full checkpoint
  PCA_MAT   for a search: the basis from dimred pca; without it, stage 2 fits one to the snapshots beside WEIGHTS" \
    "the configuration in the folder of stage 1" "$@"
