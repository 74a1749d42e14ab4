# Sourced by run_stage_1.sh and run_stage_2.sh: run_stage STAGE POSITIONS ABOUT "$@" checks the arguments and starts the
# stage's ranks. POSITIONS names the arguments that must be there; ABOUT explains them.
. "$(dirname "${BASH_SOURCE[0]}")/install.sh"

run_stage() {
    local stage=$1 positions=$2 about=$3 position
    shift 3
    case "${1:-}" in
        -h | --help)
            stage_usage "$stage" "$positions" "$about"
            exit
            ;;
    esac
    for position in $(seq "$(wc -w <<<"${positions%%[*}")"); do
        case "${!position:-}" in
            "" | -*)
                stage_usage "$stage" "$positions" "$about" >&2
                exit 2
                ;;
        esac
    done
    install
    exec "$REPOSITORY/.venv/bin/dimred" train "stage-$stage" "$@"
}

stage_usage() {
    cat <<END
usage: bash run_stage_$1.sh $2 [options]

$3

  --config FILE.yaml           default: pipelines/configs/imagenet_stage_$1.yaml
  --set key=value              changes the configuration; may be repeated
  --devices N                  devices on all hosts together (8)
  --device-target Ascend|CPU   (Ascend)
  --rank-table FILE            ranks and devices as in this table; see dimred rank-table
  --out DIR                    where the folders device{rank}_stage_$1/ go (here)
  --resume                     continue the runs in them
  --stall-timeout SECONDS      end a job that makes no progress for so long, and name the rank (1800; 0: never)
  --dry-run                    only print what each rank would run
  --nodes N --node-rank I --master-addr ADDRESS [--master-port P]
                               several hosts: the same command on each, with its own --node-rank

Exit status: 0 done; 2 wrong input; otherwise that of the first rank that failed.
END
}
