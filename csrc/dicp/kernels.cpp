#include "kernels.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

namespace dicp {
namespace {

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
namespace avx512 {
#define DICP_LANES 16
#define DICP_TILE_ROWS 8
#define DICP_TILE_VECTORS 3
#include "product_kernels.h"
#undef DICP_LANES
#undef DICP_TILE_ROWS
#undef DICP_TILE_VECTORS
}  // namespace avx512
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define DICP_LANES 8
#define DICP_TILE_ROWS 6
#define DICP_TILE_VECTORS 2
#include "product_kernels.h"
#undef DICP_LANES
#undef DICP_TILE_ROWS
#undef DICP_TILE_VECTORS
}  // namespace avx2
#pragma GCC pop_options
#endif
namespace baseline {
#define DICP_LANES 4
#define DICP_TILE_ROWS 6
#define DICP_TILE_VECTORS 2
#include "product_kernels.h"
}  // namespace baseline

}  // namespace

const Kernels& kernels() {
    static const Kernels& found = []() -> const Kernels& {
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            return avx512::kKernels;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kKernels;
#endif
        return baseline::kKernels;
    }();
    return found;
}

}  // namespace dicp
