// Matrix products: BLAS as torch brings it, and own kernels where there are only a few rows.
#pragma once
#include <memory>

#include "plan.h"

namespace dicp {

/// `weight` may be null: `product.b` is read as it is.
void multiply(const Matmul& product, const PackedWeight* weight);

/// The packed form of `product.b`, made when it is first used; null where reading it as it is is as good.
const PackedWeight* packed_weight(Plan& plan, const Matmul& product);

}  // namespace dicp
