#include "kernels/cpu_capability.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace dlinfer {
namespace {

CpuCapability best() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        return CpuCapability::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("f16c"))
        return CpuCapability::avx2;
#endif
    return CpuCapability::plain;
}

CpuCapability wanted() {
    const char* given = std::getenv("DLINFER_CPP_LEVEL");
    if (given == nullptr || *given == '\0') return best();
    const std::string name(given);
    for (const auto capability : {CpuCapability::plain, CpuCapability::avx2, CpuCapability::avx512}) {
        const char* names[] = {"plain", "avx2", "avx512"};
        if (name != names[static_cast<int>(capability)]) continue;
        if (capability > best())
            throw std::runtime_error("DLINFER_CPP_LEVEL=" + name + ": this machine does not have these instructions; take a lower one or none");
        return capability;
    }
    throw std::runtime_error("DLINFER_CPP_LEVEL=" + name + ": expected plain, avx2, avx512 or nothing");
}

}  // namespace

CpuCapability cpu_capability() {
    static const CpuCapability chosen = wanted();
    return chosen;
}

const char* cpu_capability_name() {
    const char* names[] = {"plain", "avx2", "avx512"};
    return names[static_cast<int>(cpu_capability())];
}

}  // namespace dlinfer
