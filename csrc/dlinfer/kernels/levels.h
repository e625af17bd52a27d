// The levels of machines that kernels are compiled for, and how one is chosen.
//
// A kernel file says
//     namespace dlinfer::DLINFER_LEVEL { void rms_norm(const NormRows& rows) { ... } }
// and a header declares it for all levels with DLINFER_DECLARE(void rms_norm(const NormRows&)). Callers write
//     DLINFER_PICK(rms_norm)(rows);
// Functions of a header that a kernel file includes must be in the level's namespace too (or static): the linker keeps one copy of an
// inline function, and that copy might have been compiled for a better machine than this one.
#pragma once

namespace dlinfer {

enum class Level { plain, avx2, avx512 };

/// The best level of this machine, or a lower one that DLINFER_CPP_LEVEL names. Decided once.
Level level();
const char* level_name();

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
    (::dlinfer::level() == ::dlinfer::Level::avx512  ? ::dlinfer::avx512::name              \
     : ::dlinfer::level() == ::dlinfer::Level::avx2  ? ::dlinfer::avx2::name                \
                                                     : ::dlinfer::plain::name)
#else
#define DLINFER_DECLARE(...)   \
    namespace dlinfer::plain { \
    __VA_ARGS__;               \
    }
#define DLINFER_PICK(name) (::dlinfer::plain::name)
#endif
