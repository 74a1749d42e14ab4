# Sourced by run_stage_1.sh and run_stage_2.sh: run_stage STAGE POSITIONS ABOUT DEFAULT "$@" checks the arguments and
# starts the stage's ranks. POSITIONS names the required arguments; ABOUT explains them; DEFAULT says which
# configuration the stage takes without --config.
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/install.sh"

run_stage() {
    local stage=$1 positions=$2 position
    local usage="usage: bash run_stage_$1.sh $2 [options]

$3

The script takes dimred train's options, such as --config FILE.yaml, --set key=value, --devices N, --device-target
Ascend|GPU|CPU, --rank-table FILE, --out DIR, --resume and --dry-run. Once dimred is installed, dimred train --help
explains them all. Without --config the stage takes $4.

The script uses the Python that DIMRED_PYTHON names. Without DIMRED_PYTHON it uses the environment that you call it in,
if dimred-mindspore[train] is installed there, and otherwise its clone's .venv, which it makes once.

Exit status: 0 done; 2 wrong input; otherwise the status of the first rank that failed."
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
