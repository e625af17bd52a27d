// Outputs of losses, linear algebra and optimizers; the table names these rules.
#pragma once
#include "../outputs.h"

namespace dipu {}  // namespace dipu
