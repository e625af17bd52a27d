#!/bin/sh
# Finds a Python that can host the project and hands over to tools/environment.py.
# PYTHON=/path/to/python chooses one; otherwise the one .venv was made with stays, and a new .venv gets the first
# fitting of python3, python3.12 and python3.11.
set -eu

here=$(dirname "$0")

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null
}

candidates="python3 python3.12 python3.11"
if [ -f "$here/../.venv/stamps/python" ]; then
    candidates="$here/../.venv/bin/python $candidates"
fi
seen=""
for candidate in ${PYTHON:-$candidates}; do
    if fits "$candidate"; then
        exec "$candidate" "$here/environment.py" "$@"
    fi
    seen="$seen
    $candidate: $("$candidate" --version 2>&1 | head -n 1 || true)"
done

cat >&2 <<MESSAGE
error: no suitable Python was found
  expected: Python 3.11 or 3.12
  found:$seen
  do: install one (on Debian or Ubuntu: apt install python3 python3-venv),
      or name it: make demo PYTHON=/path/to/python3.12
MESSAGE
exit 2
