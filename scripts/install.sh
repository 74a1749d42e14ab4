# Sourced by the other scripts. Sets REPOSITORY and PYTHON. choose_python() takes the environment in which the script is
# called, if dimred-mindspore[train] is installed there; otherwise install() fills the clone's .venv, once. Where
# NVIDIA's driver finds a GPU, install() adds CUDA's libraries.

# If the script is a link, find the clone that it links to.
REPOSITORY=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
PYTHON=$REPOSITORY/.venv/bin/python

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or 3.12 on the PATH; mindspore needs one of them" >&2
    return 1
}

# Print which requirements of dimred-mindspore[train] a Python's environment lacks: nothing if it can train, "dimred" if
# dimred itself is not installed. Only installed packages count, not a clone in the current folder (-P).
missing_in() {
    "$1" -P -c '
from importlib.metadata import PackageNotFoundError, requires, version
try:
    requirements = requires("dimred-mindspore")
    from packaging.requirements import Requirement
except (PackageNotFoundError, ImportError):
    raise SystemExit(print("dimred"))
for text in requirements:
    needed = Requirement(text)
    if needed.marker is not None and not needed.marker.evaluate({"extra": "train"}):
        continue
    try:
        installed = version(needed.name)
    except PackageNotFoundError:
        raise SystemExit(print(f"{needed.name}{needed.specifier}"))
    if not needed.specifier.contains(installed, prereleases=True):
        print(f"{needed.name}{needed.specifier} (it has {installed})")
' 2>/dev/null || echo dimred
}

# Set PYTHON to DIMRED_PYTHON, or to the Python on the PATH if dimred-mindspore[train] is installed there; else install
# .venv. An Ascend image brings a MindSpore that fits its driver; the clone's .venv would not have it.
choose_python() {
    local candidate missing
    if [ -n "${DIMRED_PYTHON:-}" ]; then
        if ! command -v "$DIMRED_PYTHON" >/dev/null; then
            echo "error: DIMRED_PYTHON is '$DIMRED_PYTHON', which is not a program; give a Python, or unset it" >&2
            return 2
        fi
        missing=$(missing_in "$DIMRED_PYTHON")
        if [ -n "$missing" ]; then
            echo "error: DIMRED_PYTHON is '$DIMRED_PYTHON', which lacks ${missing//$'\n'/, }; '$DIMRED_PYTHON' -m pip" \
                "install '$REPOSITORY[train]', or unset DIMRED_PYTHON" >&2
            return 2
        fi
        PYTHON=$DIMRED_PYTHON
        return
    fi
    for candidate in python python3; do
        candidate=$(command -v "$candidate") || continue
        if [ "$candidate" -ef "$PYTHON" ] && [ "$(dirname "$candidate")" -ef "$(dirname "$PYTHON")" ]; then
            break # the clone's own .venv is active; install() keeps it up to date
        fi
        missing=$(missing_in "$candidate")
        if [ -z "$missing" ]; then
            PYTHON=$candidate
            return
        elif [ "$missing" != dimred ]; then
            echo "the dimred of $candidate can't train, for lack of ${missing//$'\n'/, }; using $REPOSITORY/.venv" >&2
            break
        fi
    done
    install
}

# Print "cuda" if NVIDIA's driver finds a GPU and MindSpore's package has a CUDA backend for this machine.
extra_of_gpu() {
    "$1" -I -S -c '
import ctypes, platform, sys
try:
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
except OSError:
    raise SystemExit
has_backend = (sys.platform, platform.machine()) == ("linux", "x86_64")
if has_backend and driver.cuInit(0) == driver.cuDeviceGetCount(ctypes.byref(count)) == 0 < count.value:
    print("cuda")
' 2>/dev/null || true # a driver that crashes has no GPU
}

# Do nothing if this pyproject.toml has been installed in this folder. A .venv that was moved or copied is installed
# again, because it names the old folder. The mark is written last, so an interrupted installation is repeated.
install() {
    local wanted mark=$REPOSITORY/.venv/.installed python cuda size="about 3 GB"
    python=$PYTHON
    if [ ! -x "$PYTHON" ]; then
        python=$(find_python) || return
    fi
    cuda=$(extra_of_gpu "$python")
    wanted="$(cksum <"$REPOSITORY/pyproject.toml") $REPOSITORY${cuda:+ $cuda}"
    if [ -x "$PYTHON" ]; then
        case "$(cat "$mark" 2>/dev/null)" in
            "$wanted" | "$wanted cuda") return ;; # CUDA's libraries stay, for example on a login node without a GPU
        esac
    fi
    if [ -n "$cuda" ]; then
        size="about 6 GB, of which 3 GB are CUDA's libraries, because NVIDIA's driver finds a GPU here"
    fi
    echo "installing into $REPOSITORY/.venv ($size; a few minutes; only the first time)" >&2
    if [ ! -x "$PYTHON" ]; then
        "$python" -m venv "$REPOSITORY/.venv" || return
    fi
    "$PYTHON" -m pip install --quiet --no-compile --disable-pip-version-check \
        --editable "$REPOSITORY[test${cuda:+,$cuda}]" || return
    # Compile what every process imports, even if Python is told to write no bytecode: it saves four seconds each.
    env -u PYTHONDONTWRITEBYTECODE "$PYTHON" -c "import dimred.pipelines.stage_1, dimred.pipelines.stage_2" || return
    echo "$wanted" >"$mark"
}
