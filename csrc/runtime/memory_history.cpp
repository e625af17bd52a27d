#include "memory_history.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>

namespace dipu {

std::atomic<int> memory_history_level{0};

namespace {

struct History {
    std::mutex mutex;
    HistorySettings settings;
    std::array<std::deque<MemoryEvent>, kMaxDevices> events;
};
History& history() {
    static auto* instance = new History;
    return *instance;
}

std::atomic<int> traceback_level{0};
std::atomic<bool> with_cpp{false};
thread_local std::shared_ptr<c10::GatheredContext> tls_gathered;

constexpr std::array<const char*, 7> kNames{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "snapshot", "oom"};

int64_t now_in_microseconds() {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool of_the_stack(const std::string& file) {
    for (const char* part : {"-packages/torch/", "-packages/torch_dipu/", "-packages/_ditorch/", "-packages/op_tools/"})
        if (file.find(part) != std::string::npos) return true;
    return false;
}

bool of_python(const std::string& file) {
    if (file == "<string>" || file == "<stdin>") return true;
    return file.size() > 3 && file.compare(file.size() - 3, 3, ".py") == 0;
}

}  // namespace

const char* name_of(MemoryAction action) { return kNames[static_cast<size_t>(action)]; }

void record_memory_history(HistorySettings settings, bool clear) {
    auto& mine = history();
    std::lock_guard<std::mutex> lock(mine.mutex);
    if (clear || !settings.enabled)
        for (auto& events : mine.events) events.clear();
    memory_history_level = settings.enabled ? settings.events ? 2 : 1 : 0;
    traceback_level = settings.enabled ? static_cast<int>(settings.tracebacks) : 0;
    with_cpp = settings.cpp;
    mine.settings = std::move(settings);
}

std::vector<MemoryEvent> memory_events(int device) {
    std::lock_guard<std::mutex> lock(history().mutex);
    const auto& events = history().events[device];
    return {events.begin(), events.end()};
}

std::shared_ptr<c10::GatheredContext> gather_traceback(TracebackFor purpose) {
    if (traceback_level.load(std::memory_order_relaxed) < static_cast<int>(purpose)) return nullptr;
    return tls_gathered = torch::CapturedTraceback::gather(true, true, with_cpp.load(std::memory_order_relaxed));
}

std::shared_ptr<c10::GatheredContext> gathered_for_this_call() { return tls_gathered; }
void forget_gathered() { tls_gathered.reset(); }

void record_memory_event(MemoryAction action, int device, const void* pointer, size_t bytes, int64_t stream,
                         std::shared_ptr<c10::GatheredContext> context) {
    if (memory_history_level.load(std::memory_order_relaxed) < 2) return;
    auto& mine = history();
    const bool freed = action == MemoryAction::FreeRequested || action == MemoryAction::FreeCompleted;
    const auto needed = freed ? TracebackFor::Frees : TracebackFor::Allocations;
    if (traceback_level.load(std::memory_order_relaxed) < static_cast<int>(needed)) context.reset();
    std::lock_guard<std::mutex> lock(mine.mutex);
    const auto& skipped = mine.settings.skipped;
    if (std::find(skipped.begin(), skipped.end(), name_of(action)) != skipped.end()) return;
    auto& events = mine.events[device];
    while (!events.empty() && events.size() >= mine.settings.most_events) events.pop_front();
    if (mine.settings.most_events == 0) return;
    events.push_back({action, reinterpret_cast<uint64_t>(pointer), bytes, stream, now_in_microseconds(), std::move(context)});
}

void record_memory_event(MemoryAction action, const Block& block, size_t bytes) {
    record_memory_event(action, block.device, block.pointer, bytes, block.stream,
                        action == MemoryAction::Alloc ? block.context : gathered_for_this_call());
}

std::vector<std::vector<CallFrame>> frames_of(const std::vector<std::shared_ptr<c10::GatheredContext>>& contexts) {
    std::vector<std::vector<CallFrame>> found(contexts.size());
    std::vector<torch::CapturedTraceback*> tracebacks;
    std::vector<size_t> places;
    for (size_t i = 0; i < contexts.size(); ++i) {
        if (!contexts[i]) continue;
        tracebacks.push_back(torch::getCapturedTracebackFromContext(contexts[i]));
        places.push_back(i);
    }
    if (tracebacks.empty()) return found;
    const auto symbolized = torch::symbolize(tracebacks);
    for (size_t i = 0; i < places.size(); ++i)
        for (const uint64_t frame : symbolized.tracebacks[i]) {
            const auto& named = symbolized.all_frames[frame];
            found[places[i]].push_back({named.filename, named.funcname, static_cast<int64_t>(named.lineno)});
        }
    return found;
}

std::string call_site_of(const std::vector<CallFrame>& frames) {
    const auto text = [](const CallFrame& frame) { return frame.file + ":" + std::to_string(frame.line) + " (" + frame.function + ")"; };
    for (const auto& frame : frames)
        if (of_python(frame.file) && !of_the_stack(frame.file)) return text(frame);
    for (const auto& frame : frames)
        if (of_python(frame.file)) return text(frame);
    return "";
}

}  // namespace dipu
