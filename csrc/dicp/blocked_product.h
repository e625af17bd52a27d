// Products of float32 matrices by own kernels, for processors to which torch's BLAS does not give its best, and for few rows anywhere.
#pragma once
#include <memory>
#include <vector>

#include "services.h"

namespace dicp {

/// Panels of a matrix B in the order in which the kernels read them.
class Panels;

/// Whether the product has so few rows, of such strides, that it is best formed column by column, and was.
bool multiply_few_rows(const Matmul& product);

/// Whether own kernels are the faster ones for a product of float32 on this processor.
bool blocked_is_faster(const Matmul& product);
bool panels_are_faster(const Matmul& product);

/// float32 of any strides; `panels` of B may be given, then B is not read.
void multiply_blocked(const Matmul& product, const Panels* panels);

std::shared_ptr<const Panels> packed_panels(const Matmul& product);

}  // namespace dicp
