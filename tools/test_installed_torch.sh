#!/bin/sh
# Build the project against the torch of a Python that is already there, into a folder of its own, and run tests with it:
#
#   PYTHON=python3.12 tools/test_installed_torch.sh -n 12 tests/torch_dipu tests/ditorch
#
# Nothing is installed into that Python. What the tests need beside torch (pytest, hypothesis, ...) must be on its path or in
# a folder named by SITE.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
TARGET=$PWD/build/installed-torch
rm -rf "$TARGET/site"
started=$(date +%s)
export PYTHONPATH="${SITE:+$SITE:}${PYTHONPATH:-}"
[ -z "${SITE:-}" ] || export PATH="$SITE/bin:$PATH"
TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --target "$TARGET/site" --config-settings=build-dir="$TARGET/build" .
export PYTHONPATH="$TARGET/site:$PYTHONPATH" PATH="$TARGET/site/bin:$PATH" OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
"$PYTHON" -c "import sys, torch; print('==> torch', torch.__version__, 'Python', sys.version.split()[0])"
echo "==> built in $(($(date +%s) - started)) s"
exec "$PYTHON" -m pytest -q "$@"
