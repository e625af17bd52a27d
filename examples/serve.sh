#!/usr/bin/env bash
# Starts LMDeploy's server on dlinfer's operators, asks it one question, prints the answer while it comes, stops the server.
#
#   examples/serve.sh                          SmolLM2-135M, out of a wheel of PyPI
#   examples/serve.sh FOLDER                   another model
#   examples/serve.sh FOLDER --session-len N   all further words go to `lmdeploy serve api_server`
#
# Settings:  PORT=23333              the server's port; without it, a free one
#            QUESTION="..."          what to ask
#            KEEP=1                  leave the server running after the question, until Ctrl+C
#            DLINFER_DEVICE=cpu      where the tensors live: cpu, dipu or cuda
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "serve.sh: $1" >&2
  exit 2
}

bin=${BIN:-.venv/bin}
[ -x "$bin/python" ] || fail "there is no $bin/python. Run \`make env\`, or set BIN to the folder of another environment's programs."
[ -x "$bin/lmdeploy" ] || fail "LMDeploy is not installed in $bin. docs/serving.md says how."

folder=${1:-}
[ $# -eq 0 ] || shift
if [ -z "$folder" ]; then
  folder=$("$bin/python" -c 'from dlinfer.checkpoints.smollm2 import folder; print(folder())')
fi
[ -f "$folder/config.json" ] || fail "$folder is not a folder with a model: it has no config.json."

port=${PORT:-$("$bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
address=http://127.0.0.1:$port
log=$(mktemp)
server=

stop() {
  if [ -n "$server" ] && kill -TERM "$server" 2>/dev/null; then
    wait "$server" 2>/dev/null || true
  fi
  rm -f "$log"
}
trap stop EXIT
trap 'exit 130' INT TERM

healthy() {
  "$bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=5)' "$address" 2>/dev/null
}

echo "serve.sh: starting the server at $address"
# `dlinfer serve` is `lmdeploy serve api_server` without a race between the two processes that it starts.
"$bin/dlinfer" serve "$folder" --model-name "$(basename "$folder")" --server-name 127.0.0.1 --server-port "$port" \
  --session-len 2048 --max-batch-size 16 --num-gpu-blocks 256 "$@" > "$log" 2>&1 &
server=$!
while kill -0 "$server" 2>/dev/null && ! healthy; do sleep 1; done
kill -0 "$server" 2>/dev/null || server=
if [ -z "$server" ]; then
  tail -n 30 "$log" >&2
  echo "serve.sh: the server ended before it answered; above are the last lines that it wrote." >&2
  exit 1
fi

"$bin/python" examples/ask_server.py ${QUESTION:+"$QUESTION"} --address "$address"

if [ "${KEEP:-0}" = 1 ]; then
  echo "serve.sh: the server goes on at $address. Ctrl+C stops it."
  wait "$server"
fi
