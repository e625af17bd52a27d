// Settings that may change while the program runs: variables DIPU_..., read at start and followed when Python changes them.
//
//   DIPU_FORCE_FALLBACK_OPS_LIST       operators that go to the fallback although the table serves them
//   DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS operators that keep torch's own implementation: to a device that is the fallback, too
//   DIPU_AUTOCOMPARE_OPS_LIST          operators whose results are compared with the CPU's
//   DIPU_DUMP_OP_ARGS                  0: nothing, 1: names, 2: and arguments, 3: and values
//   DIPU_LOG_FALLBACK_INFO             1: a line for every call that falls back
//   DIPU_WITH_DIOPI_LIBRARY            DISABLE: no operator of the vendor is used
//   DIPU_MEM_CHECK...                  csrc/runtime/memory_check.h
//
// Lists are comma-separated regular expressions that match a whole name; two have a file form in the working directory, too.
#pragma once
#include <ATen/core/stack.h>

#include <atomic>
#include <chrono>
#include <string>

#include "op_lists.h"
#include "record.h"

namespace dipu {

// Calls are shown or compared; operators are recorded for a profile.
enum InstrumentReason : unsigned { kShowsCalls = 1, kProfiled = 2 };

struct Settings {
    std::atomic<bool> any_list{false};  // some operator is to fall back or to be compared
    std::atomic<unsigned> instrument{0};  // why wrappers go another way: InstrumentReason, several added up
    std::atomic<int> dump{0};
    std::atomic<bool> log_fallback{false};
    std::atomic<bool> without_diopi{false};
    std::atomic<bool> timing{false};
};
DIPU_API extern Settings settings;

// A profile begins or ends.
DIPU_API void set_profiled(bool on);

// What the lists say of a call of one operator: OpFlag, several added up.
DIPU_API unsigned op_flags(OpRecord& record, Form form);
// The form of a boxed call.
DIPU_API Form form_of(const torch::jit::Stack& arguments);

// torch.use_deterministic_algorithms.
DIPU_API bool deterministic_algorithms();

// Whether a wrapper leaves its DIOPI functions alone. The fallback knows the arguments that decide whether a call is deterministic.
inline bool must_fall_back(OpRecord& record, Form form) {
    if (C10_UNLIKELY(record.may_alert) && deterministic_algorithms()) return true;
    if (C10_LIKELY(!settings.any_list.load(std::memory_order_relaxed))) return settings.without_diopi.load(std::memory_order_relaxed);
    return settings.without_diopi.load(std::memory_order_relaxed) || (op_flags(record, form) & (kFallBack | kKeepDefault)) != 0;
}
// Which setting sends a call to the fallback; None if none does.
DIPU_API FallbackSetting setting_that_falls_back(OpRecord& record, Form form);
// The variable's name.
DIPU_API const char* variable_of(FallbackSetting setting);

// Adds the time until its end to a record.
class Stopwatch {
   public:
    Stopwatch(OpRecord& record, Way way) : record_(record), way_(way), start_(std::chrono::steady_clock::now()) {}
    ~Stopwatch() {
        const auto spent = std::chrono::steady_clock::now() - start_;
        record_.nanoseconds[static_cast<int>(way_)] += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    }

   private:
    OpRecord& record_;
    Way way_;
    std::chrono::steady_clock::time_point start_;
};

// One variable gets a value ("" as if it were not set). False if there is no such setting; throws c10::ValueError if the value is wrong.
DIPU_API bool set_setting(const std::string& name, const std::string& value);
// All of them, from the environment and the files; returns what was wrong with them, one line each.
DIPU_API std::string read_settings();

}  // namespace dipu
