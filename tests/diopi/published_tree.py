"""A checkout in the form of the published DIOPI, with operators of our own (published_style.cpp)."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent

# What the published generator does, as far as these operators need it: declarations, and C functions in front of them.
GENERATOR = """
import argparse, re
from pathlib import Path

parser = argparse.ArgumentParser()
for flag in "-d", "-o", "-c":
    parser.add_argument(flag)
given = parser.parse_args()
sources = sorted(Path(given.d, "impl", given.c, "functions").glob("*.cpp"))
text = "\\n".join(path.read_text() for path in sources)
found = re.findall(r"^diopiError_t (diopi\\w+)\\((.*)\\) \\{", text, re.M)
declared = "".join(f"diopiError_t {name}({arguments});\\n" for name, arguments in found)
head = "#pragma once\\n#include <diopi/functions.h>\\n"
Path(given.o, "impl_functions.hpp").write_text(f"{head}namespace impl::cuda {{\\n{declared}}}\\n")
body = ""
for name, arguments in found:
    names = ", ".join(re.findall(r"(\\w+)(?:,|$)", arguments))
    body += f'extern "C" diopiError_t {name}({arguments}) {{ return ::impl::cuda::{name}({names}); }}\\n'
Path(given.o, "diopi_adaptor.cpp").write_text('#include "impl_functions.hpp"\\n' + body)
"""

ERRORS = """
extern "C" const char* diopiGetVendorName() { return "published-style"; }
extern "C" const char* diopiGetLastErrorString() { return "no reason"; }
"""

# Not compiled, as it would need more than there is.
LEFT_OUT = """
#include <flash_attn/flash_api.h>
diopiError_t diopiRMSNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out) {
"""


def write_tree(folder: Path) -> Path:
    """The checkout."""
    operators = (FOLDER / "published_style.cpp").read_text(encoding="utf-8")
    texts = {
        "impl/torch/functions/functions.cpp": operators,
        "impl/torch/functions/functions_ext.cpp": LEFT_OUT,
        "impl/torch/functions/functions_lightllm.cpp": "",
        "impl/torch/functions/error.cpp": ERRORS,
        "impl/torch/helper.cpp": "",
        "impl/torch/build_aten.cpp": "",
        "adaptor/codegen/gen.py": GENERATOR,
        "adaptor/csrc/convert.cpp": "#include <diopi/diopirt.h>\nauto format = diopiMemoryFormat_t::Preserve;\n",
        "adaptor/csrc/composite_ops.cpp": "",
        "proto/include/diopi/functions.h": "",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
