#!/bin/sh
# Run a Python program of this project with the project's own Python (`make`), or with the `python` on the PATH.
cd "$(dirname "$0")/../.." || exit
if [ -x .venv/bin/python ]; then
    exec .venv/bin/python "$@"
fi
exec "$(command -v python || echo python3)" "$@"
