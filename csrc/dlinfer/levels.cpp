#include "kernels/levels.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace dlinfer {
namespace {

Level best() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        return Level::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("f16c"))
        return Level::avx2;
#endif
    return Level::plain;
}

Level wanted() {
    const char* given = std::getenv("DLINFER_CPP_LEVEL");
    if (given == nullptr || *given == '\0') return best();
    const std::string name(given);
    for (const auto level : {Level::plain, Level::avx2, Level::avx512}) {
        const char* names[] = {"plain", "avx2", "avx512"};
        if (name != names[static_cast<int>(level)]) continue;
        if (level > best())
            throw std::runtime_error("DLINFER_CPP_LEVEL=" + name + ": this machine does not have these instructions; take a lower level or none");
        return level;
    }
    throw std::runtime_error("DLINFER_CPP_LEVEL=" + name + ": expected plain, avx2, avx512 or nothing");
}

}  // namespace

Level level() {
    static const Level chosen = wanted();
    return chosen;
}

const char* level_name() {
    const char* names[] = {"plain", "avx2", "avx512"};
    return names[static_cast<int>(level())];
}

}  // namespace dlinfer
