// What a compiled graph is called with, and what it calls. The generated C++ has the same declarations as text
// (src/dicp/vendor/HostGraph/services.py); a test compares the two.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dicp {

/// How numbers of a product are stored. Sums of the half precisions are formed in float32 and rounded once.
enum MatmulDtype : int32_t { kMatmulFloat32, kMatmulFloat64, kMatmulBFloat16, kMatmulFloat16 };

/// out[batch, m, n] = a[batch, m, k] * b[batch, k, n] + bias[n]. Strides are in elements and may be 0; neighbours in a row of `out` are
/// neighbours in memory.
struct Matmul {
    int64_t batch, m, n, k;
    const void* a;
    int64_t a_batch, a_row, a_column;
    const void* b;
    int64_t b_batch, b_row, b_column;
    void* out;
    int64_t out_batch, out_row;
    const void* bias;  // of the same dtype, or null
    int32_t dtype;     // a MatmulDtype
    int32_t weight;    // which of HostProgram.weights `b` is: it may be packed; -1: none of them
};

typedef void (*Task)(void* context, int64_t begin, int64_t end);

/// Functions that return int: 0, or the run is over: generated code returns at once, and Python gets the exception.
struct Services {
    size_t size;  // of this structure
    /// The operator HostProgram.calls[index]. `dims`: of each tensor argument its byte offset, sizes and strides; the sizes that are arguments; of
    /// each result that is needed the sizes and strides it must have. Fills in the pointers of the results.
    int (*call)(void* frame, int64_t index, const int64_t* dims);
    /// Divides 0..count among torch's threads in parts of at least `grain`; the same parts for the same number of threads.
    void (*parallel)(void* frame, Task task, void* context, int64_t count, int64_t grain);
    int (*matmul)(void* frame, const Matmul* product);
    /// Null where the caller computes; else segment `index` is queued on the device instead.
    int (*launch)(void* frame, int64_t segment);
    /// An index was out of range: what the first message says is raised when the run is over. From any thread.
    void (*fail)(void* frame, const char* message);
};

/// dims: bytes of the arena; then of HostProgram.allocations the sizes and strides; then of HostProgram.outputs what each needs.
typedef void (*PlanFunction)(const int64_t* sizes, int64_t* dims);
typedef void (*RunFunction)(char** values, const int64_t* sizes, const Services* services, void* frame);
/// A run of kernels between two calls of operators.
typedef void (*SegmentFunction)(int64_t segment, char** values, const int64_t* sizes, const Services* services, void* frame);

}  // namespace dicp
