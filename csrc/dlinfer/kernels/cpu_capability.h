// The CPU capabilities that kernels are compiled for and how one is chosen, and the dtypes that all of them know.
//
// A kernel file says
//     namespace dlinfer::DLINFER_CPU_CAPABILITY { void rms_norm(const NormRows& rows) { ... } }
// and a header declares it for all capabilities with DLINFER_DECLARE(void rms_norm(const NormRows&)). Callers write
//     DLINFER_PICK(rms_norm)(rows);
// Functions of a header that a kernel file includes must be in the capability's namespace too (or static): the linker keeps one copy of an
// inline function, and that copy might have been compiled for a better machine than this one.
#pragma once

namespace dlinfer {

/// Of stored numbers. All arithmetic is in float.
enum class Dtype { f32, bf16, f16 };

enum class CpuCapability { plain, avx2, avx512 };

/// The best capability of this machine, or a lower one that DLINFER_CPP_LEVEL names. Decided once.
CpuCapability cpu_capability();
const char* cpu_capability_name();

}  // namespace dlinfer

#if defined(__x86_64__)
#define DLINFER_DECLARE(...)            \
    namespace dlinfer::plain {          \
    __VA_ARGS__;                        \
    }                                   \
    namespace dlinfer::avx2 {           \
    __VA_ARGS__;                        \
    }                                   \
    namespace dlinfer::avx512 {         \
    __VA_ARGS__;                        \
    }
#define DLINFER_PICK(name)                                                                  \
    (::dlinfer::cpu_capability() == ::dlinfer::CpuCapability::avx512  ? ::dlinfer::avx512::name              \
     : ::dlinfer::cpu_capability() == ::dlinfer::CpuCapability::avx2  ? ::dlinfer::avx2::name                \
                                                     : ::dlinfer::plain::name)
#else
#define DLINFER_DECLARE(...)   \
    namespace dlinfer::plain { \
    __VA_ARGS__;               \
    }
#define DLINFER_PICK(name) (::dlinfer::plain::name)
#endif
