"""What generated C++ calls, as text that it begins with.

`csrc/dicp/services.h` has the same for the runtime; a test compares the two.

A generated file consists of this text, its kernels, and

    extern "C" void dicp_plan(const i64* sizes, i64* dims);
    extern "C" void dicp_run(char** values, const i64* sizes, const Services* services, void* frame);
    extern "C" void dicp_segment(
        i64 segment, char** values, const i64* sizes, const Services* services, void* frame);

`dicp_run` places the values of the arena (`values[i] = values[0] + ...`, all of them, first), then alternates between segments,
each a run of kernels and products, and operators of ATen:

    DICP_SEGMENT(0)
    DICP_CALL(0, 0, 4, 8, 8, 1, ...)  // index of HostProgram.calls, then its dims
    DICP_SEGMENT(1)

`dicp_segment` runs one segment (a switch). Where tensors are on a device, segments are queued there and only addresses are
computed here, so `dicp_run` itself must not touch what values point to. A product in a segment is
`DICP_MATMUL(batch, m, n, k, a, ...)` in the order of the members of `Matmul`. `services->fail(frame, message)`
makes an IndexError of the run, from any thread; the kernel goes on.
"""

from __future__ import annotations

__all__ = ["MATMUL_DTYPES", "MATMUL_FIELDS", "SERVICES", "SERVICES_FIELDS", "SERVICES_TEXT"]

import torch

MATMUL_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}

# (type, name), as csrc/dicp/services.h explains them.
MATMUL_FIELDS = (
    ("i64", "batch"),
    ("i64", "m"),
    ("i64", "n"),
    ("i64", "k"),
    ("const void*", "a"),
    ("i64", "a_batch"),
    ("i64", "a_row"),
    ("i64", "a_column"),
    ("const void*", "b"),
    ("i64", "b_batch"),
    ("i64", "b_row"),
    ("i64", "b_column"),
    ("void*", "out"),
    ("i64", "out_batch"),
    ("i64", "out_row"),
    ("const void*", "bias"),
    ("int", "dtype"),
    ("int", "weight"),
)

# (result, name, parameters)
SERVICES = (
    ("int", "call", "void* frame, i64 index, const i64* dims"),
    (
        "void",
        "parallel",
        "void* frame, void (*task)(void* context, i64 begin, i64 end), void* context, i64 count, i64 grain",
    ),
    ("int", "matmul", "void* frame, const Matmul* product"),
    ("int", "launch", "void* frame, i64 segment"),
    ("void", "fail", "void* frame, const char* message"),
)
SERVICES_FIELDS = ("size", *(name for _, name, _ in SERVICES))


def _text() -> str:
    matmul = "".join(f"    {kind} {name};\n" for kind, name in MATMUL_FIELDS)
    services = "".join(f"    {result} (*{name})({parameters});\n" for result, name, parameters in SERVICES)
    return f"""\
typedef long long i64;
struct Matmul {{
{matmul}}};
struct Services {{
    unsigned long size;
{services}}};
#define DICP_CALL(index, ...) \\
    {{ \\
        const i64 dims_of_call[] = {{__VA_ARGS__}}; \\
        if (services->call(frame, index, dims_of_call)) return; \\
    }}
#define DICP_MATMUL(...) \\
    {{ \\
        const Matmul product = {{__VA_ARGS__}}; \\
        if (services->matmul(frame, &product)) return; \\
    }}
#define DICP_SEGMENT(index) \\
    if (!services->launch) \\
        dicp_segment(index, values, sizes, services, frame); \\
    else if (services->launch(frame, index)) \\
        return;
#define DICP_EXPORT extern "C" __attribute__((visibility("default")))
DICP_EXPORT void dicp_plan(const i64* sizes, i64* dims);
DICP_EXPORT void dicp_run(char** values, const i64* sizes, const Services* services, void* frame);
DICP_EXPORT void dicp_segment(i64 segment, char** values, const i64* sizes, const Services* services, void* frame);
// A kernel of a device whose modules are libraries of C functions (dipu/host_kernel.h): the runtime that queued the segment
// put a function of its own first among the arguments.
struct DeviceCall {{
    unsigned long size;
    unsigned grid[3], block[3];
    void* shared_memory;
    unsigned argument_count;
    void* const* arguments;
}};
typedef void (*DicpSegment)(i64 segment, char** values, const i64* sizes, const Services* services, void* frame);
DICP_EXPORT int dicp_kernel(const DeviceCall* call) {{
    return (*(int (**)(const DeviceCall*, DicpSegment))call->arguments[0])(call, dicp_segment);
}}
"""


SERVICES_TEXT = _text()
