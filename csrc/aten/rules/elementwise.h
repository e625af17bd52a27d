// Outputs of element-wise operators, comparisons and creation; the table names these rules.
#pragma once
#include "../outputs.h"

namespace dipu {}  // namespace dipu
