// Tensors of another dtype or layout: by the library's own operators where they are known to be right, else on the host.
#pragma once
#include <string>

#include "elements.h"
#include "operators.h"
#include "tensors.h"

namespace adaptor {

// A new tensor that lives as long as the context; false with the reason.
bool require(diopiContextHandle_t ctx, const Numbers& shape, const Numbers& stride, int dtype, diopiDevice_t device, Tensor& made,
             std::string& problem);
// Writes the values of `from` into `to`, which has the same shape; false with the reason.
bool convert(diopiContextHandle_t ctx, const Tensor& from, const Tensor& to, Purpose purpose, Cost& cost, std::string& problem);
// A new library may be loaded: what was learned about the last one no longer holds.
void forget_trust();

}  // namespace adaptor
