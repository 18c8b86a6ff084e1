#!/bin/sh
# setup_dynamo.sh DIR: a virtual environment in DIR with NVIDIA Dynamo's frontend and mocker, for test_dynamo.py.
#
# About 600 MB; no GPU. Does nothing if DIR is such an environment already. Says nothing unless it fails, and
# fails within half a minute where the registry cannot be reached. PYTHON chooses the interpreter
# (default python3). Without its dependencies, of which some fail to install and most are never imported.
set -eu

VERSION=1.6.1
DIR=${1:?"usage: $0 DIR"}

ready() {
    [ -x "$DIR/bin/python" ] && "$DIR/bin/python" -P - "$VERSION" 2>/dev/null <<'PROBE'
import importlib.metadata, sys
wanted = sys.argv[1]
found = {importlib.metadata.version(name) for name in ("ai-dynamo", "ai-dynamo-runtime")}
import dynamo.frontend, dynamo.llm, dynamo.mocker
sys.exit(found != {wanted})
PROBE
}

if ready; then
    exit 0
fi
if [ -e "$DIR" ] && [ ! -e "$DIR/pyvenv.cfg" ]; then
    echo "$0: $DIR exists and is no virtual environment; name another folder" >&2
    exit 2
fi

LOG=$(mktemp)
failed() {
    tail -n 5 "$LOG" >&2
    echo "$0: $1" >&2
    rm -rf "$LOG" "$DIR"
    exit 1
}
trap 'failed interrupted' INT TERM

"${PYTHON:-python3}" -m venv --clear "$DIR" >"$LOG" 2>&1 || failed "no virtual environment could be made in $DIR"
pip() {
    "$DIR/bin/python" -m pip --quiet --disable-pip-version-check --no-input --retries 1 --timeout 10 \
        install --only-binary :all: "$@" >"$LOG" 2>&1
}
pip --no-deps "ai-dynamo==$VERSION" "ai-dynamo-runtime==$VERSION" || failed "ai-dynamo $VERSION cannot be installed"
pip uvloop "pydantic<=2.13.5" msgspec prometheus-client pyyaml aiohttp fastapi uvicorn zstandard transformers \
    huggingface_hub || failed "what ai-dynamo imports cannot be installed"
ready || failed "ai-dynamo $VERSION was installed but cannot be imported"
rm -f "$LOG"
