#!/bin/sh
# DIOPI's own operators as a vendor's library, under the name that the published documents have for it:
#
#   cd impl && DIOPI_SOURCE=/path/DIOPI sh scripts/build_impl.sh torch          # writes lib/libdiopi_impl.so
#
# A second word, cpu or cuda, says what it computes on; without it, cuda where the installed torch has it.
set -eu
impl=$(cd "$(dirname "$0")/.." && pwd)
library="$impl/lib/libdiopi_impl.so"

case "${1:-}" in
  torch)
    if [ -z "${DIOPI_SOURCE:-}" ]; then
      echo "build_impl.sh: set DIOPI_SOURCE to a checkout of DIOPI (github.com/DeepLink-org/DIOPI)" >&2
      exit 2
    fi
    device=${2:-$(TORCH_DEVICE_BACKEND_AUTOLOAD=0 python -c "import torch; print('cuda' if torch.version.cuda else 'cpu')")}
    exec diopi build-published --source "$DIOPI_SOURCE" --device "$device" --out "$library"
    ;;
  clean)
    rm -f "$library"
    ;;
  *)
    echo "build_impl.sh: '${1:-}' is not built here. Expected torch or clean; other chips bring their own library (docs/vendors.md)" >&2
    exit 2
    ;;
esac
