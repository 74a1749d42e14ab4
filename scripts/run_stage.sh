# Sourced by run_stage_1.sh and run_stage_2.sh: run_stage STAGE POSITIONS ABOUT DEFAULT "$@" checks the arguments and
# starts the stage's ranks. POSITIONS names the arguments that must be there; ABOUT explains them; DEFAULT says which
# configuration is taken without --config.
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/install.sh"

run_stage() {
    local stage=$1 positions=$2 position
    local usage="usage: bash run_stage_$1.sh $2 [options]

$3

The options are those of dimred train, such as --config FILE.yaml, --set key=value, --devices N, --device-target
Ascend|GPU|CPU, --rank-table FILE, --out DIR, --resume and --dry-run. Once installed, dimred train --help explains all of
them. Without --config the stage takes $4.

The script runs in the environment that it is called in, or that of the Python named by DIMRED_PYTHON, if
dimred-mindspore[train] is installed there; otherwise in .venv of its clone, which it makes once.

Exit status: 0 done; 2 wrong input; otherwise that of the first rank that failed."
    shift 4
    case "${1:-}" in
        -h | --help)
            echo "$usage"
            exit
            ;;
    esac
    for position in $(seq "$(wc -w <<<"${positions%%[*}")"); do
        case "${!position:-}" in
            "" | -*)
                echo "$usage" >&2
                exit 2
                ;;
        esac
    done
    choose_python || exit
    exec "$PYTHON" -P -m dimred train "stage-$stage" "$@"
}
