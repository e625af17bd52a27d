#include "deferred_errors.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace dipu {

std::atomic<bool> any_deferred_error{false};

namespace {

constexpr int kMostInFull = 4;  // a vendor that is broken fails for every block

struct Kept {
    std::mutex mutex;
    std::string text;
    int count = 0;
};
Kept& kept() {
    static auto* instance = new Kept;
    return *instance;
}

}  // namespace

void raise_later(const std::string& what) noexcept {
    try {
        std::lock_guard<std::mutex> lock(kept().mutex);
        if (++kept().count <= kMostInFull) kept().text += (kept().text.empty() ? "" : "; ") + what;
        any_deferred_error = true;
    } catch (const std::exception&) {  // out of host memory: nothing can be kept
    }
}

bool check_later(int status, const char* doing) noexcept {
    if (C10_LIKELY(status == DIPU_SUCCESS)) return true;
    const char* message = vendor()->last_error();
    try {
        raise_later(std::string(doing) + " failed: " + (message && *message ? message : "no reason given by the vendor"));
    } catch (const std::exception&) {
    }
    return false;
}

std::string take_deferred_errors() {
    std::lock_guard<std::mutex> lock(kept().mutex);
    std::string text = std::move(kept().text);
    if (kept().count > kMostInFull) text += "; and " + std::to_string(kept().count - kMostInFull) + " more";
    kept().text.clear();
    kept().count = 0;
    any_deferred_error = false;
    return text;
}

void raise_deferred_errors_now() {
    const std::string text = take_deferred_errors();
    TORCH_CHECK(text.empty(), "dipu: ", text, " (in clearing up before this call, where it could not be raised)");
}

}  // namespace dipu
