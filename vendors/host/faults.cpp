#include "faults.h"

#include <dipu/vendor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace dipu_vendor {

void set_error(const std::string& message);

namespace {

constexpr int kQueued = -1;
constexpr size_t kEntries = static_cast<size_t>(Entry::count);
constexpr std::array<const char*, kEntries> kNames = {
#define DIPU_HOST_ENTRY(name) #name,
    DIPU_HOST_ENTRIES(DIPU_HOST_ENTRY)
#undef DIPU_HOST_ENTRY
};

struct StatusName {
    const char* name;
    int status;
};
constexpr StatusName kStatuses[] = {{"DIPU_ERROR", DIPU_ERROR},
                                    {"DIPU_ERROR_MEMORY", DIPU_ERROR_MEMORY},
                                    {"DIPU_ERROR_NOT_READY", DIPU_ERROR_NOT_READY},
                                    {"DIPU_ERROR_VALUE", DIPU_ERROR_VALUE},
                                    {"queued", kQueued}};

struct Fault {
    std::string text;
    size_t entry;
    uint64_t call;
    bool onwards;
    int status;
    uint64_t hits;
};

struct State {
    std::mutex mutex;
    std::vector<Fault> faults;
    std::array<uint64_t, kEntries> calls{};
};
State& state() {
    static auto* instance = new State;
    return *instance;
}
std::atomic<bool> any{false};
thread_local bool work_fails = false;

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (const char letter : text) {
        if (letter == separator)
            parts.emplace_back();
        else if (letter != ' ')
            parts.back() += letter;
    }
    return parts;
}

[[noreturn]] void refuse(const std::string& text, const std::string& expected) {
    throw std::invalid_argument("fault '" + text + "': expected entry:call:status, such as event_create:3:DIPU_ERROR; " + expected);
}

bool queues_work(size_t entry) {
    for (const Entry queuing : {Entry::copy, Entry::fill, Entry::stream_run, Entry::kernel_launch})
        if (entry == static_cast<size_t>(queuing)) return true;
    return false;
}

Fault parse(const std::string& text) {
    const auto parts = split(text, ':');
    if (parts.size() != 3) refuse(text, "three parts");
    Fault fault{text, kEntries, 0, false, DIPU_SUCCESS, 0};
    for (size_t i = 0; i < kEntries; ++i)
        if (parts[0] == kNames[i]) fault.entry = i;
    if (fault.entry == kEntries) refuse(text, "entries are " + fault_entries());
    char* end = nullptr;
    fault.call = std::strtoull(parts[1].c_str(), &end, 10);
    fault.onwards = *end == '+';
    if (fault.call == 0 || *(end + fault.onwards) != 0) refuse(text, "calls count from 1; 3+ is the third and all after it");
    for (const auto& known : kStatuses)
        if (parts[2] == known.name) fault.status = known.status;
    if (fault.status == DIPU_SUCCESS) refuse(text, "a status is DIPU_ERROR, DIPU_ERROR_MEMORY, DIPU_ERROR_NOT_READY, DIPU_ERROR_VALUE or queued");
    if (fault.status == kQueued && !queues_work(fault.entry)) refuse(text, "only copy, fill, stream_run and kernel_launch queue work");
    return fault;
}

// From the environment, before anything else is called.
const bool from_environment = [] {
    const char* text = std::getenv("DIPU_HOST_FAULT");
    if (!text || !*text) return false;
    try {
        set_faults(text);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dipu: DIPU_HOST_FAULT is left out: %s\n", error.what());
    }
    return true;
}();

}  // namespace

bool faults_set() { return any.load(std::memory_order_relaxed); }

int injected(Entry called) {
    const auto entry = static_cast<size_t>(called);
    std::lock_guard<std::mutex> lock(state().mutex);
    const uint64_t call = ++state().calls[entry];
    for (Fault& fault : state().faults) {
        if (fault.entry != entry || (fault.onwards ? call < fault.call : call != fault.call)) continue;
        ++fault.hits;
        work_fails = fault.status == kQueued;
        if (work_fails) return DIPU_SUCCESS;
        // last_error leaves the thread's message alone: it has none to give
        if (called != Entry::last_error) set_error("injected fault: " + std::string(kNames[entry]) + ", call " + std::to_string(call));
        return fault.status;
    }
    return DIPU_SUCCESS;
}

bool work_is_to_fail() {
    const bool fails = work_fails;
    work_fails = false;
    return fails;
}

void set_faults(const std::string& text) {
    std::vector<Fault> parsed;
    for (const std::string& part : split(text, ','))
        if (!part.empty()) parsed.push_back(parse(part));
    std::lock_guard<std::mutex> lock(state().mutex);
    any = !parsed.empty();
    state().faults = std::move(parsed);
    state().calls.fill(0);
}

std::string faults() {
    std::lock_guard<std::mutex> lock(state().mutex);
    std::string text;
    for (const Fault& fault : state().faults) text += (text.empty() ? "" : ",") + fault.text + "=" + std::to_string(fault.hits);
    return text;
}

std::string fault_entries() {
    std::string text;
    for (const char* name : kNames) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

}  // namespace dipu_vendor
