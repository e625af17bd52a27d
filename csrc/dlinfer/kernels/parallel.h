// Work shared among torch's threads, without torch's headers.
#pragma once
#include <cstdint>
#include <type_traits>

namespace dlinfer {

/// Calls work(context, begin, end) for parts of 0..count of at least `grain`, on torch's threads. Exceptions come out here.
void parallel_parts(int64_t count, int64_t grain, void (*work)(void*, int64_t, int64_t), void* context);

/// The same for a function object.
template <typename Work>
static inline void parallel(int64_t count, int64_t grain, Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    parallel_parts(
        count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&work)));
}

/// How many threads torch would use.
int threads();

}  // namespace dlinfer
