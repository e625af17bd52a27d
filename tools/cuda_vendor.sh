#!/bin/sh
# The vendor `cuda` on a machine with an NVIDIA card, one part after the other, each with a limit of its own and its output in a file of OUT:
#
#   OUT=results PYTHON=python3.12 tools/test_installed_torch.sh -- tools/cuda_vendor.sh [PART...]
#
# Parts: doctor tests step conformance opinfo models. Without names all of them. A part that fails or runs out of time stops no other.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-build/cuda-vendor}
mkdir -p "$OUT"
export DIPU_DEVICE=cuda DIPU_MOCK_CUDA=0 PYTHONUNBUFFERED=1

part() {  # name, seconds, command
  name=$1 limit=$2
  shift 2
  started=$(date +%s)
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1
  code=$?
  echo "==> $name: exit code $code after $(($(date +%s) - started)) s"
  tail -n "${LINES_SHOWN:-25}" "$OUT/$name.log"
}

run_part() {
  case $1 in
    doctor) part doctor 60 sh -c 'nvidia-smi; dipu doctor; python -c "
import torch, torch_dipu
print(torch.dipu.get_device_properties(0), torch.dipu.vendor())
x = torch.ones(8, device=\"dipu\"); print(x + x, torch.dipu.op_counts())"' ;;
    tests) part tests 120 python -m pytest -q -p no:cacheprovider tests/cuda ;;
    step) part step 170 python benchmarks/run.py gpt_step --json "$OUT/gpt_step.json" ;;
    # The card is shared by the workers; each keeps a context of about half a GiB.
    conformance) part conformance 150 diopi conformance --vendor cuda --quick --workers "${WORKERS:-12}" --json "$OUT/conformance.json" ;;
    opinfo) part opinfo 240 ditorch torch-tests --device dipu --quick --json "$OUT/opinfo.json" ;;
    models) part models 300 python benchmarks/run.py models_table --device dipu --json "$OUT/models.json" ;;
    *) echo "there is no part '$1'; there are doctor, tests, step, conformance, opinfo and models" >&2; exit 2 ;;
  esac
}

[ $# -gt 0 ] || set -- doctor tests step conformance opinfo models
for name in "$@"; do run_part "$name"; done
