// Errors of the vendor where no exception may leave: in deleters, and in clearing up after another error. They are kept, and raised
// once by the next allocation or synchronisation; what is left at the end of the process is printed.
#pragma once
#include <atomic>
#include <string>

#include "vendor.h"

namespace dipu {

DIPU_API extern std::atomic<bool> any_deferred_error;

// Keeps the vendor's message if the call failed; whether it succeeded.
DIPU_API bool check_later(int status, const char* doing) noexcept;
// The same for what is known in words.
DIPU_API void raise_later(const std::string& what) noexcept;
// What is kept, "" if nothing; it is told once.
DIPU_API std::string take_deferred_errors();
DIPU_API void raise_deferred_errors_now();
inline void raise_deferred_errors() {
    if (C10_UNLIKELY(any_deferred_error.load(std::memory_order_relaxed))) raise_deferred_errors_now();
}

}  // namespace dipu
