#!/bin/sh
# The backend tritongraph on a machine with a GPU: its tests, the conformance operators, the benchmark. Under the torch that is there:
#
#   OUT=results PYTHON=python3.12 tools/test_installed_torch.sh -- sh tools/dicp_on_gpu.sh
#
# Each step has a limit of its own, in seconds (TESTS, CONFORMANCE, BENCHMARK; 0 leaves it out); one that fails stops no other.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-$PWD/build/dicp-gpu}
WORKERS=${WORKERS:-14}
mkdir -p "$OUT"
export DICP_CACHE_DIR="${DICP_CACHE_DIR:-$OUT/cache}" PYTHONWARNINGS=ignore
failed=0
step() {
  name=$1 limit=$2
  shift 2
  [ "$limit" -gt 0 ] || return 0
  started=$(date +%s)
  timeout -k 5 "$limit" "$@" > "$OUT/$name.txt" 2>&1
  code=$?
  [ $code -eq 0 ] || failed=1
  echo "==> $name: exit code $code after $(($(date +%s) - started)) s"
  tail -n "${LINES_SHOWN:-45}" "$OUT/$name.txt" | cut -c1-240
}
parallel=$(python -c "import xdist" 2> /dev/null && echo "-n $WORKERS")
# Without the options of pyproject.toml: plugins that they name may be missing here.
# shellcheck disable=SC2086
step tests "${TESTS:-150}" python -m pytest -q -p no:cacheprovider -o addopts= --tb=short --show-capture=no $parallel \
  tests/dicp/test_tritongraph.py tests/dicp/test_tritongraph_compiled.py
DICP_DUMP_DIR="$OUT/dump" step benchmark "${BENCHMARK:-165}" python benchmarks/dicp_gpu.py --device cuda \
  --limit $((${BENCHMARK:-165} - 15)) --json "$OUT/dicp_gpu.json"
step conformance "${CONFORMANCE:-120}" python -m dicp conformance --backend tritongraph --device cuda --quick \
  --workers "$WORKERS" --json "$OUT/conformance.json"
rm -rf "$OUT/cache"
exit $failed
