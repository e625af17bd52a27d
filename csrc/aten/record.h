// One record for each operator that ran on the device: what its schema says, and how often it ran in which way.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <string>
#include <vector>

#include "../runtime/vendor.h"

namespace dipu {

// How a call was carried out.
enum class Way { Diopi, Alias, Copy };

// Which setting of the user sent a call to the fallback.
enum class FallbackSetting { None, ForceList, KeepList, WithoutLibrary };

// Reads the files of operator lists again if they changed; called now and then while operators run (settings.cpp).
DIPU_API void poll_list_files();

struct OpRecord {
    explicit OpRecord(c10::OperatorHandle op);

    c10::OperatorHandle op;
    std::string name;           // "add.Tensor"
    int generator = -1;         // position of its Generator? argument
    bool writes = false;        // some argument is written
    bool in_place = false;      // its results are its written arguments, none of them an out=
    bool copies = false;        // between devices: operands may be anywhere
    bool cpu_indices = false;   // a device tensor may be indexed by CPU tensors
    bool asks_requires_grad = false; // its CPU kernel looks at requires_grad of its operands
    bool may_alert = false;     // calls of it may be refused where deterministic algorithms are asked for
    std::vector<bool> written;  // by argument
    std::atomic<int64_t> runs[3]{};
    std::atomic<int64_t> nanoseconds[3]{};  // while the setting `timing` is on
    std::atomic<int64_t> bytes{};           // copied between host and device by the fallback, likewise
    std::atomic<int64_t> by_setting[4]{};        // calls that fell back, by FallbackSetting
    std::atomic<uint64_t> op_flags[2]{};      // what the user's lists say of both forms of a call, as last decided (settings.cpp)

    void count(Way way) {
        constexpr int64_t kCallsBetweenPolls = 16;
        if (C10_UNLIKELY(runs[static_cast<int>(way)].fetch_add(1, std::memory_order_relaxed) % kCallsBetweenPolls == 0)) poll_list_files();
    }
};

// By name ("add.Tensor", namespace aten) or by operator; the reference stays valid.
DIPU_API OpRecord& op_record(const char* name);
DIPU_API OpRecord& op_record(const c10::OperatorHandle& op);
DIPU_API std::vector<const OpRecord*> op_records();
DIPU_API void reset_op_records();

}  // namespace dipu
