#!/usr/bin/env bash
# Stage 1 on all devices: train, and keep snapshots of the weights.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/install.sh"

usage() {
    cat <<END
usage: bash run_stage_1.sh DATA [options]

  DATA      folder with train/<class>/*.JPEG and val/<class>/*.JPEG

  --config FILE.yaml           default: pipelines/configs/imagenet_stage_1.yaml
  --set key=value              over the configuration; as often as you like
  --devices N                  devices on all hosts together (8)
  --device-target Ascend|CPU   (Ascend)
  --rank-table FILE            ranks and devices as in this table; see dimred rank-table
  --out DIR                    where the folders device{rank}_stage_1/ go (here)
  --resume                     go on with what is in them
  --dry-run                    only print what each rank would run
  --nodes N --node-rank I --master-addr ADDRESS [--master-port P]
                               several hosts: the same command on each, with its own --node-rank

Exit status: 0 done; 2 wrong input; otherwise that of the first rank that failed.
END
}

case "${1:-}" in
    -h | --help)
        usage
        exit
        ;;
esac
for position in $(seq 1); do
    case "${!position:-}" in
        "" | -*)
            usage >&2
            exit 2
            ;;
    esac
done
install
exec "$REPOSITORY/.venv/bin/dimred" train stage-1 "$@"
