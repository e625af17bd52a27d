#include "settings.h"

#include <c10/util/Exception.h>
#include <time.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "../runtime/memory_check.h"

namespace dipu {

Settings settings;

namespace {

struct Lists {
    std::mutex mutex;
    std::atomic<uint64_t> epoch{1};
    std::array<OpList, 3> all{{{"DIPU_FORCE_FALLBACK_OPS_LIST", ".dipu_force_fallback_op_list.config", kFallBack},
                             {"DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "", kKeepDefault},
                             {"DIPU_AUTOCOMPARE_OPS_LIST", ".specified_autocompare_op_list.config", kCompare}}};
};
Lists& lists() {
    static auto* instance = new Lists;
    return *instance;
}

void set_reason(InstrumentReason reason, bool on) {
    if (on)
        settings.instrument |= reason;
    else
        settings.instrument &= ~reason;
}

// The caller holds the lists' mutex.
void refresh() {
    bool any = false, compares = false;
    for (auto& list : lists().all) {
        any = any || list.used();
        compares = compares || (list.used() && list.flag == kCompare);
        if (const std::string text = list.unmatched(); !text.empty()) std::fputs(text.c_str(), stderr);
    }
    settings.any_list = any;
    set_reason(kShowsCalls, compares || settings.dump >= 2);
    lists().epoch += 1;
}

int number(const std::string& name, const std::string& value, int most) {
    if (value.empty()) return 0;
    TORCH_CHECK_VALUE(value.size() == 1 && value[0] >= '0' && value[0] <= '0' + most, name, "='", value, "': expected a number from 0 to ", most);
    return value[0] - '0';
}

// What is wrong with the file, "" if nothing is; `changed` if it was read. The caller holds the mutex.
std::string follow_file(OpList& list, bool& changed) {
    try {
        changed = list.follow_file() || changed;
        return "";
    } catch (const c10::Error& error) {
        return std::string(error.what_without_backtrace()) + "\n";
    }
}

void follow_files() {
    std::lock_guard<std::mutex> lock(lists().mutex);
    bool changed = false;
    for (auto& list : lists().all)
        if (const std::string problem = follow_file(list, changed); !problem.empty())
            std::fprintf(stderr, "dipu: the list stays as it was: %s", problem.c_str());
    if (changed) refresh();
}

}  // namespace

void set_profiled(bool on) { set_reason(kProfiled, on); }

// Called for every sixteenth call of an operator. The clock that is only as fine as a tick costs next to nothing.
void poll_list_files() {
    constexpr int64_t kPause = 200'000'000;
    static std::atomic<int64_t> next{0};
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    const int64_t now = time.tv_sec * 1'000'000'000 + time.tv_nsec;
    int64_t due = next.load(std::memory_order_relaxed);
    if (now >= due && next.compare_exchange_strong(due, now + kPause)) follow_files();
}

unsigned op_flags(OpRecord& record, Form form) {
    auto& cached = record.op_flags[static_cast<int>(form)];
    const uint64_t now = lists().epoch.load(std::memory_order_acquire);
    const uint64_t decided = cached.load(std::memory_order_acquire);
    if (decided >> kOpFlagBits == now) return decided & ((1u << kOpFlagBits) - 1);
    std::lock_guard<std::mutex> lock(lists().mutex);
    const auto names = names_of(record, form);
    unsigned found = 0;
    for (const auto& list : lists().all)
        if (list.names(names)) found |= list.flag;
    cached.store(lists().epoch.load() << kOpFlagBits | found, std::memory_order_release);
    return found;
}

Form form_of(const torch::jit::Stack& arguments) {
    bool on_device = false, number = false;
    for (const c10::IValue& value : arguments) {
        if (!value.isTensor() || !value.toTensor().defined()) continue;
        on_device = on_device || value.toTensor().is_privateuseone();
        number = number || (value.toTensor().is_cpu() && value.toTensor().dim() == 0);
    }
    return on_device && number ? Form::Scalar : Form::Tensors;
}

FallbackSetting setting_that_falls_back(OpRecord& record, Form form) {
    if (settings.without_diopi) return FallbackSetting::WithoutLibrary;
    const unsigned found = settings.any_list ? op_flags(record, form) : 0;
    return found & kFallBack ? FallbackSetting::ForceList : found & kKeepDefault ? FallbackSetting::KeepList : FallbackSetting::None;
}

const char* variable_of(FallbackSetting setting) {
    switch (setting) {
        case FallbackSetting::ForceList: return "DIPU_FORCE_FALLBACK_OPS_LIST";
        case FallbackSetting::KeepList: return "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS";
        case FallbackSetting::WithoutLibrary: return "DIPU_WITH_DIOPI_LIBRARY";
        default: return "";
    }
}

bool set_setting(const std::string& name, const std::string& value) {
    if (set_memory_check(name, value)) return true;
    std::lock_guard<std::mutex> lock(lists().mutex);
    for (auto& list : lists().all) {
        if (name != list.variable) continue;
        list.set(value);
        bool changed = false;
        if (const std::string problem = follow_file(list, changed); !problem.empty())
            std::fprintf(stderr, "dipu: the list stays as it was: %s", problem.c_str());
        refresh();
        return true;
    }
    if (name == "DIPU_DUMP_OP_ARGS")
        settings.dump = number(name, value, 3);
    else if (name == "DIPU_LOG_FALLBACK_INFO")
        settings.log_fallback = number(name, value, 1) != 0;
    else if (name == "DIPU_WITH_DIOPI_LIBRARY")
        settings.without_diopi = value == "DISABLE" || value == "disable";
    else
        return false;
    refresh();
    return true;
}

std::string read_settings() {
    std::string problems;
    {
        std::lock_guard<std::mutex> lock(lists().mutex);
        bool changed = false;
        for (auto& list : lists().all) problems += follow_file(list, changed);
    }
    for (const char* name : {"DIPU_FORCE_FALLBACK_OPS_LIST", "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "DIPU_AUTOCOMPARE_OPS_LIST",
                             "DIPU_DUMP_OP_ARGS", "DIPU_LOG_FALLBACK_INFO", "DIPU_WITH_DIOPI_LIBRARY", "DIPU_MEM_CHECK_ENABLE_BACKTRACE",
                             "DIPU_MEM_CHECK_LOG_INTERVAL", "DIPU_MEM_CHECK_MAX_BLOCK", "DIPU_MEM_CHECK"}) {
        const char* value = std::getenv(name);
        try {
            set_setting(name, value ? value : "");
        } catch (const c10::Error& error) {
            problems += std::string(error.what_without_backtrace()) + "\n";
        }
    }
    return problems;
}

}  // namespace dipu
