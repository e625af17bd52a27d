#include "memory_check.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "memory_history.h"
#include "memory_pool.h"

namespace dipu {

std::atomic<bool> memory_check_on{false};

namespace {

constexpr size_t kMostShown = 32;
constexpr int kDepth = 24;

struct Checked {
    size_t size;
    int device;
    uint64_t number;  // of the allocation
    std::shared_ptr<c10::GatheredContext> python;
    std::vector<CallFrame> named;
    std::vector<void*> cpp;
};

struct Checker {
    std::mutex mutex;
    std::map<uintptr_t, Checked> blocks;  // by address
    size_t total = 0;
    uint64_t inserted = 0, errors = 0;
    bool backtraces = false;
    uint64_t interval = 1000;
    size_t most_blocks = 10000;
    bool warned = false;
};
Checker& checker() {
    static auto* instance = new Checker;
    return *instance;
}

std::string state_of(const Checker& mine) {
    std::ostringstream text;
    text << "current block num = " << mine.blocks.size() << ", total_size = " << (mine.total >> 20) << "MB, insert count = " << mine.inserted
         << ", max block num = " << mine.most_blocks << ", log interval = " << mine.interval;
    return text.str();
}

void say(const std::string& text) { std::fprintf(stderr, "dipu memory checker: %s\n", text.c_str()); }

std::string library_and_function(void* address) {
    Dl_info info{};
    if (dladdr(address, &info) == 0 || !info.dli_fname) return "??";
    std::string file = info.dli_fname;
    file = file.substr(file.rfind('/') + 1);
    if (info.dli_sname) return file + ": " + c10::demangle(info.dli_sname);
    char offset[32];
    std::snprintf(offset, sizeof(offset), "+0x%" PRIxPTR, reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase));
    return file + offset;
}

std::string described(uintptr_t address, const Checked& block) {
    std::ostringstream text;
    text << "ptr: 0x" << std::hex << address << std::dec << ", size: " << block.size << ", device: dipu:" << block.device
         << ", allocation: " << block.number;
    for (const auto& frame : block.named) text << "\n    " << frame.file << ":" << frame.line << " in " << frame.function;
    for (void* frame : block.cpp) text << "\n    " << library_and_function(frame);
    return text.str();
}

void report_at_exit() {
    if (!memory_check_on) return;
    std::fputs(memory_check_report().c_str(), stderr);
}

uint64_t number_of(const std::string& name, const std::string& value, uint64_t otherwise) {
    if (value.empty()) return otherwise;
    char* end = nullptr;
    const long long number = std::strtoll(value.c_str(), &end, 10);
    TORCH_CHECK_VALUE(*end == 0 && number > 0, name, "='", value, "': expected a number above 0");
    return static_cast<uint64_t>(number);
}

bool flag_of(const std::string& name, const std::string& value) {
    TORCH_CHECK_VALUE(value.empty() || value == "0" || value == "1", name, "='", value, "': expected 0 or 1");
    return value == "1";
}

void name_frames(Checker& mine) {
    std::vector<std::shared_ptr<c10::GatheredContext>> contexts;
    std::vector<uintptr_t> addresses;
    {
        std::lock_guard<std::mutex> lock(mine.mutex);
        for (auto& [address, block] : mine.blocks) {
            if (!block.python) continue;
            contexts.push_back(block.python);
            addresses.push_back(address);
        }
    }
    auto frames = frames_of(contexts);
    std::lock_guard<std::mutex> lock(mine.mutex);
    for (size_t i = 0; i < addresses.size(); ++i) {
        const auto found = mine.blocks.find(addresses[i]);
        if (found == mine.blocks.end() || found->second.python != contexts[i]) continue;
        found->second.named = std::move(frames[i]);
        found->second.python.reset();
    }
}

}  // namespace

void check_allocation(Block& block) {
    auto& mine = checker();
    Checked entry{block.requested, block.device, 0, nullptr, {}, {}};
    if (mine.backtraces) {
        entry.python = torch::CapturedTraceback::gather(true, false, false);
        std::array<void*, kDepth> frames{};
        const int count = backtrace(frames.data(), kDepth);
        entry.cpp.assign(frames.begin() + std::min(count, 1), frames.begin() + count);
    }
    const auto start = reinterpret_cast<uintptr_t>(block.pointer);
    std::string found, state;
    {
        std::lock_guard<std::mutex> lock(mine.mutex);
        entry.number = ++mine.inserted;
        auto after = mine.blocks.lower_bound(start + block.size);
        if (after != mine.blocks.begin()) {
            const auto before = std::prev(after);
            if (before->first + before->second.size > start) {
                ++mine.errors;
                found = "error: memory in use was handed out again: " + described(start, entry) + "\n  it is held by " +
                        described(before->first, before->second);
                mine.total -= before->second.size;
                mine.blocks.erase(before);
            }
        }
        mine.total += entry.size;
        mine.blocks[start] = std::move(entry);
        block.checked = true;
        if (mine.blocks.size() > mine.most_blocks && !std::exchange(mine.warned, true))
            state = "there may be a leak: " + state_of(mine);
        else if (mine.inserted % mine.interval == 0)
            state = state_of(mine);
    }
    if (!found.empty()) say(found);
    if (!state.empty()) say(state);
}

void check_free(Block& block) {
    if (!std::exchange(block.checked, false)) return;  // allocated before the checker was on
    auto& mine = checker();
    std::lock_guard<std::mutex> lock(mine.mutex);
    const auto found = mine.blocks.find(reinterpret_cast<uintptr_t>(block.pointer));
    if (found == mine.blocks.end()) {
        ++mine.errors;
        std::ostringstream text;
        text << "error: memory was freed that is not held: ptr: " << block.pointer << ", size: " << block.requested;
        return say(text.str());
    }
    mine.total -= found->second.size;
    mine.blocks.erase(found);
}

bool set_memory_check(const std::string& name, const std::string& value) {
    auto& mine = checker();
    if (name == "DIPU_MEM_CHECK") {
        const bool on = flag_of(name, value);
        if (on) {
            static const int registered = std::atexit(report_at_exit);
            TORCH_CHECK(registered == 0, "dipu: the memory checker cannot print at the end of the process");
        }
        memory_check_on = on;
    } else if (name == "DIPU_MEM_CHECK_ENABLE_BACKTRACE") {
        mine.backtraces = flag_of(name, value);
    } else if (name == "DIPU_MEM_CHECK_LOG_INTERVAL") {
        mine.interval = number_of(name, value, 1000);
    } else if (name == "DIPU_MEM_CHECK_MAX_BLOCK") {
        mine.most_blocks = number_of(name, value, 10000);
    } else {
        return false;
    }
    return true;
}

void name_call_sites() {
    name_frames(checker());
    checker().backtraces = false;  // from here on no interpreter may be asked
}

std::string memory_check_report() {
    auto& mine = checker();
    std::lock_guard<std::mutex> lock(mine.mutex);
    std::ostringstream text;
    text << "dipu memory checker: going to destruction. " << state_of(mine) << ", error count = " << mine.errors << "\n";
    std::vector<std::pair<uintptr_t, const Checked*>> held;
    for (const auto& [address, block] : mine.blocks) held.emplace_back(address, &block);
    std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second->size > b.second->size; });
    for (size_t i = 0; i < std::min(held.size(), kMostShown); ++i)
        text << "dipu memory checker: not freed: " << described(held[i].first, *held[i].second) << "\n";
    if (held.size() > kMostShown) text << "dipu memory checker: and " << held.size() - kMostShown << " smaller blocks\n";
    return text.str();
}

}  // namespace dipu
