// The simulated chip has a short way for small tensors; here every kernel is a launch, and there is none.
#pragma once
#include <optional>

#include "kernel.h"

namespace dipu_vendor {

template <class F, class... Handles>
std::optional<diopiError_t> flat(diopiContextHandle_t, const char*, F, diopiTensorHandle_t, Handles...) {
    return std::nullopt;
}

template <class F>
std::optional<diopiError_t> flat_with(diopiContextHandle_t, const char*, F, diopiTensorHandle_t, diopiConstTensorHandle_t,
                                      const diopiScalar_t*) {
    return std::nullopt;
}

constexpr bool is_one(const diopiScalar_t*) { return false; }
inline std::optional<float> flat_scalar(const diopiScalar_t*) { return std::nullopt; }

}  // namespace dipu_vendor
