#!/usr/bin/env bash
# Stage 1 on all devices: train, and keep snapshots of the weights.
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_stage.sh"
run_stage 1 "DATA" "  DATA      folder with train/<class>/*.JPEG and val/<class>/*.JPEG" \
    pipelines/configs/imagenet.yaml "$@"
