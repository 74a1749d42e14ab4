#!/usr/bin/env bash
# Run both stages and plain training on built-in data: from a fresh clone to a table and a picture.
# usage: bash scripts/demo.sh [--out DIR] [--seed S] [--epochs N]
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/install.sh"
choose_python
exec "$PYTHON" -P -m dimred.pipelines.demo "$@"
