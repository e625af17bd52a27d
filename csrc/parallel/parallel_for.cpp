#include "parallel_for.h"

#include <ATen/Parallel.h>

namespace ditorch {

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
    at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) { part(first, last); });
}

}  // namespace ditorch
