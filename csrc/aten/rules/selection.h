// Outputs of indexing, movement and random numbers; the table names these rules.
#pragma once
#include "../outputs.h"

namespace dipu {}  // namespace dipu
