// Outputs of reductions, normalisations, convolutions, pooling and images; the table names these rules.
#pragma once
#include "../outputs.h"

namespace dipu {}  // namespace dipu
