#!/bin/sh
# Build the project against the torch of a Python that is already there, in a virtual environment of its own on top of that
# Python's packages, and run tests with it:
#
#   PYTHON=python3.12 tools/test_installed_torch.sh -n 12 tests/torch_dipu tests/ditorch
#
# or, after two dashes, any other command:
#
#   tools/test_installed_torch.sh -- python benchmarks/verdict_on_device.py --device cuda
#
# Nothing is installed into that Python. What the tests need beside torch (pytest, hypothesis, ...) is its own, or in a folder
# named by SITE.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=$PWD/build/installed-torch/venv
"$PYTHON" -m venv --clear "$VENV"
site=$("$VENV/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
# Python may itself be a virtual environment, which --system-site-packages would look behind.
{
  [ -z "${SITE:-}" ] || echo "$SITE"
  "$PYTHON" -c "import sysconfig; print(sysconfig.get_path('purelib'))"
} > "$site/installed_torch.pth"
# The scripts in SITE's bin name the interpreter that installed them.
printf '#!/bin/sh\nexec "%s/bin/python" -m pytest "$@"\n' "$VENV" > "$VENV/bin/pytest"
chmod +x "$VENV/bin/pytest"
export PATH="$VENV/bin:${SITE:+$SITE/bin:}$PATH"
started=$(date +%s)
TORCH_DEVICE_BACKEND_AUTOLOAD=0 python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --config-settings=build-dir="$PWD/build/installed-torch/build" .
python -c "import sys, torch; print('==> torch', torch.__version__, 'Python', sys.version.split()[0])"
echo "==> built in $(($(date +%s) - started)) s"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
if [ "${1:-}" = "--" ]; then
  shift
  exec "$@"
fi
exec python -m pytest -q "$@"
