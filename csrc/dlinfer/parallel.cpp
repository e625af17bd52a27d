#include "kernels/parallel.h"

#include <ATen/Parallel.h>

namespace dlinfer {

void parallel_parts(int64_t count, int64_t grain, void (*work)(void*, int64_t, int64_t), void* context) {
    at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { work(context, begin, end); });
}

int threads() { return at::get_num_threads(); }

}  // namespace dlinfer
