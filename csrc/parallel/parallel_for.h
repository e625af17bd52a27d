// Loops that torch's threads share. `at::parallel_for` is a template of torch's headers, and runs on one thread wherever it is compiled
// without OpenMP: this file's source is compiled with it, for all modules.
#pragma once
#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace ditorch {

/// Divides begin..end among torch's threads in parts of at least `grain`; the same parts for the same number of threads.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part);

}  // namespace ditorch
