#include "switches.h"

#include <c10/util/Exception.h>
#include <time.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace dipu {

Switches switches;

namespace {

struct Lists {
    std::mutex mutex;
    std::atomic<uint64_t> epoch{1};
    std::array<List, 3> all{{{"DIPU_FORCE_FALLBACK_OPS_LIST", ".dipu_force_fallback_op_list.config", kFallBack},
                             {"DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "", kKeepDefault},
                             {"DIPU_AUTOCOMPARE_OPS_LIST", ".specified_autocompare_op_list.config", kCompare}}};
};
Lists& lists() {
    static auto* instance = new Lists;
    return *instance;
}

// The caller holds the lists' mutex.
void refresh() {
    bool any = false, compares = false;
    for (auto& list : lists().all) {
        any = any || list.used();
        compares = compares || (list.used() && list.wish == kCompare);
        if (const std::string text = list.misses(); !text.empty()) std::fputs(text.c_str(), stderr);
    }
    switches.any_list = any;
    switches.watching = compares || switches.dump >= 2;
    lists().epoch += 1;
}

int number(const std::string& name, const std::string& value, int most) {
    if (value.empty()) return 0;
    TORCH_CHECK_VALUE(value.size() == 1 && value[0] >= '0' && value[0] <= '0' + most, name, "='", value, "': expected a number from 0 to ", most);
    return value[0] - '0';
}

// What is wrong with the file, "" if nothing is; `changed` if it was read. The caller holds the mutex.
std::string follow_file(List& list, bool& changed) {
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

// Called for every sixteenth call of an operator. The clock that is only as fine as a tick costs next to nothing.
void now_and_then() {
    constexpr int64_t kPause = 200'000'000;
    static std::atomic<int64_t> next{0};
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    const int64_t now = time.tv_sec * 1'000'000'000 + time.tv_nsec;
    int64_t due = next.load(std::memory_order_relaxed);
    if (now >= due && next.compare_exchange_strong(due, now + kPause)) follow_files();
}

unsigned wishes(OpRecord& record, Form form) {
    auto& known = record.wishes[static_cast<int>(form)];
    const uint64_t now = lists().epoch.load(std::memory_order_acquire);
    const uint64_t decided = known.load(std::memory_order_acquire);
    if (decided >> kWishBits == now) return decided & ((1u << kWishBits) - 1);
    std::lock_guard<std::mutex> lock(lists().mutex);
    const auto names = names_of(record, form);
    unsigned found = 0;
    for (const auto& list : lists().all)
        if (list.names(names)) found |= list.wish;
    known.store(lists().epoch.load() << kWishBits | found, std::memory_order_release);
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

Asked asked_by(OpRecord& record, Form form) {
    if (switches.without_diopi) return Asked::WithoutLibrary;
    const unsigned found = switches.any_list ? wishes(record, form) : 0;
    return found & kFallBack ? Asked::ForceList : found & kKeepDefault ? Asked::KeepList : Asked::None;
}

const char* variable_of(Asked asked) {
    switch (asked) {
        case Asked::ForceList: return "DIPU_FORCE_FALLBACK_OPS_LIST";
        case Asked::KeepList: return "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS";
        case Asked::WithoutLibrary: return "DIPU_WITH_DIOPI_LIBRARY";
        default: return "";
    }
}

bool set_switch(const std::string& name, const std::string& value) {
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
        switches.dump = number(name, value, 3);
    else if (name == "DIPU_LOG_FALLBACK_INFO")
        switches.log_fallback = number(name, value, 1) != 0;
    else if (name == "DIPU_WITH_DIOPI_LIBRARY")
        switches.without_diopi = value == "DISABLE" || value == "disable";
    else
        return false;
    refresh();
    return true;
}

std::string read_switches() {
    std::string problems;
    {
        std::lock_guard<std::mutex> lock(lists().mutex);
        bool changed = false;
        for (auto& list : lists().all) problems += follow_file(list, changed);
    }
    for (const char* name : {"DIPU_FORCE_FALLBACK_OPS_LIST", "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "DIPU_AUTOCOMPARE_OPS_LIST",
                             "DIPU_DUMP_OP_ARGS", "DIPU_LOG_FALLBACK_INFO", "DIPU_WITH_DIOPI_LIBRARY"}) {
        const char* value = std::getenv(name);
        try {
            set_switch(name, value ? value : "");
        } catch (const c10::Error& error) {
            problems += std::string(error.what_without_backtrace()) + "\n";
        }
    }
    return problems;
}

}  // namespace dipu
