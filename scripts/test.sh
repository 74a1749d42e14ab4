#!/usr/bin/env bash
# The tests, from a fresh clone.
# usage: bash scripts/test.sh [pytest arguments]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install
cd "$REPOSITORY"
exec "$PYTHON" -m pytest "$@"
