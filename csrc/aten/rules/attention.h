// Outputs of attention and other fused operators; the table names these rules.
#pragma once
#include "../outputs.h"

namespace dipu {}  // namespace dipu
