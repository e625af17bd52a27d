#include "recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "../aten/settings.h"
#include "../runtime/pinned.h"
#include "device_clock.h"
#include "records.h"

namespace dipu {

std::atomic<bool> profiling_on{false};

// Written by its own thread, taken away by the one that ends the profile.
struct ThreadRecords {
    std::mutex mutex;
    std::atomic<uint64_t> profile{0};  // which one the records are of
    RecordsOfThread records;
    size_t measured = 0;  // of the work, from the front
    // what this thread is in; only its own
    std::vector<uint64_t> correlations;
    size_t open_operator = kNoRecord, open_range = kNoRecord;

    uint64_t correlation() const { return correlations.empty() ? 0 : correlations.back(); }
};

namespace {

using State = WorkRecord::State;

// All of a profile; a forked process gets a fresh one.
struct Profile {
    std::mutex mutex;
    std::atomic<uint64_t> number{0};  // 0: none was started
    std::vector<std::shared_ptr<ThreadRecords>> threads;
    std::array<DeviceClock, kMaxDevices> clocks;
    std::array<std::atomic<bool>, kMaxDevices> clock_runs{};
    EventPool events;
    std::unique_ptr<c10::ApproximateClockToUnixTimeConverter> converter;
    std::mutex loss;
    size_t lost = 0;
    std::string reason;
};

std::atomic<Profile*>& current() {
    static std::atomic<Profile*> profile{new Profile};
    return profile;
}
Profile& profile() { return *current().load(std::memory_order_acquire); }
std::atomic<uint64_t> last_number{0};

// The child of a fork has none of the threads that write records, and locks as they happened to be.
void begin_anew() {
    profiling_on = false;
    set_profiled(false);
    current() = new Profile;
}

ThreadRecords& this_thread() {
    thread_local const auto mine = std::make_shared<ThreadRecords>();
    Profile& now = profile();
    if (C10_LIKELY(mine->profile == now.number)) return *mine;
    std::lock_guard<std::mutex> lock(now.mutex);
    std::lock_guard<std::mutex> own(mine->mutex);
    mine->records = {};
    mine->records.thread_id = static_cast<int32_t>(syscall(SYS_gettid));
    mine->measured = 0;
    mine->correlations.clear();
    mine->open_operator = mine->open_range = kNoRecord;
    mine->profile = now.number.load();
    now.threads.push_back(mine);
    return *mine;
}

void lose(const char* doing) {
    const char* message = vendor()->last_error();
    std::lock_guard<std::mutex> lock(profile().loss);
    if (profile().lost++ == 0) profile().reason = c10::str(doing, ": ", message && *message ? message : "no reason given by the vendor");
}

bool start_clock(int device) {
    Profile& now = profile();
    if (C10_LIKELY(now.clock_runs[device].load(std::memory_order_acquire))) return true;
    std::lock_guard<std::mutex> lock(now.mutex);
    if (!now.clock_runs[device]) now.clock_runs[device] = now.clocks[device].start(device, now.events);
    return now.clock_runs[device];
}

// Reads what the events of finished work say.
void measure(WorkRecord& work) {
    void* zero = profile().clocks[work.device].zero;
    const bool known = zero && vendor()->event_elapsed(zero, work.start, &work.started) == DIPU_SUCCESS &&
                       vendor()->event_elapsed(work.start, work.finish, &work.took) == DIPU_SUCCESS;
    profile().events.give(work.device, work.start);
    profile().events.give(work.device, work.finish);
    work.state = known ? State::Measured : State::Lost;
    if (!known) lose("measuring work by events");
}

// Measures what is done by now, so that a long profile does not hold an event pair for each piece of work. The thread is locked.
void measure_finished(ThreadRecords& thread) {
    auto& work = thread.records.work;
    for (; thread.measured < work.size(); ++thread.measured) {
        WorkRecord& next = work[thread.measured];
        if (next.state == State::Open) return;
        if (next.state != State::Queued) continue;
        if (vendor()->event_query(next.finish) != DIPU_SUCCESS) return;
        measure(next);
    }
}

template <class Record>
OpenRecord open(ThreadRecords& thread, std::vector<Record>& records, const Record& record) {
    std::lock_guard<std::mutex> lock(thread.mutex);
    OpenRecord opened{&thread, thread.profile, records.size()};
    records.push_back(record);
    return opened;
}

// Calls `finish` with the entry; false if its profile is over.
template <class Record, class Finish>
bool close(OpenRecord& opened, std::vector<Record> RecordsOfThread::*records, Finish finish) {
    ThreadRecords& thread = *std::exchange(opened.thread, nullptr);
    std::lock_guard<std::mutex> lock(thread.mutex);
    if (thread.profile != opened.profile) return false;
    finish(thread, (thread.records.*records)[opened.index]);
    return true;
}

}  // namespace

void start_profile() {
    static const int no_fork_handler = pthread_atfork(nullptr, nullptr, begin_anew);
    (void)no_fork_handler;  // without one only the child of a fork inside of a profile is worse off
    stop_profile();
    collect_profile();
    Profile& now = profile();
    {
        std::lock_guard<std::mutex> lock(now.mutex);
        now.number = ++last_number;
        now.converter = std::make_unique<c10::ApproximateClockToUnixTimeConverter>();
    }
    for (int device = 0; device < device_count(); ++device)
        if (has_streams(device)) start_clock(device);
    set_profiled(true);
    profiling_on = true;
}

void stop_profile() {
    profiling_on = false;
    set_profiled(false);
}

RecordedProfile collect_profile() {
    Profile& now = profile();
    RecordedProfile recorded;
    std::vector<std::shared_ptr<ThreadRecords>> threads;
    {
        std::lock_guard<std::mutex> lock(now.mutex);
        threads = std::exchange(now.threads, {});
        now.number = ++last_number;  // what is still open belongs to no profile any more
    }
    for (const auto& thread : threads) {
        std::lock_guard<std::mutex> lock(thread->mutex);
        thread->profile = 0;
        recorded.threads.push_back(std::exchange(thread->records, {}));
    }
    for (auto& thread : recorded.threads)
        for (WorkRecord& work : thread.work)
            if (work.state == State::Queued) measure(work);
    if (now.converter) recorded.nanoseconds = now.converter->makeConverter();

    // A device's zero lies in the middle of [earliest, latest], or as much later as is needed for no work to begin before its launch.
    for (int device = 0; device < kMaxDevices; ++device) {
        DeviceClock& clock = now.clocks[device];
        if (!recorded.nanoseconds || !clock.zero) {
            recorded.device_zero.push_back(0);
            continue;
        }
        c10::time_t zero = (recorded.nanoseconds(clock.earliest) + recorded.nanoseconds(clock.latest)) / 2;
        for (const auto& thread : recorded.threads)
            for (const WorkRecord& work : thread.work)
                if (work.device == device && work.state == State::Measured && work.work != DeviceWork::AliasNow)
                    zero = std::max(zero, recorded.nanoseconds(work.begin) - static_cast<c10::time_t>(work.started * 1e6));
        recorded.device_zero.push_back(zero);
        now.clock_runs[device] = false;
        now.events.give(device, std::exchange(clock.zero, nullptr));
    }
    if (!threads.empty()) now.events.trim();
    std::lock_guard<std::mutex> lock(now.loss);
    recorded.lost = std::exchange(now.lost, 0);
    recorded.reason = std::exchange(now.reason, {});
    return recorded;
}

void push_correlation(uint64_t id) {
    if (profiling()) this_thread().correlations.push_back(id);
}

void pop_correlation() {
    if (!profiling()) return;
    auto& open = this_thread().correlations;
    if (!open.empty()) open.pop_back();  // the profile may have begun inside of an operator
}

void push_range(uint64_t id) {
    if (!profiling()) return;
    ThreadRecords& thread = this_thread();
    thread.open_range = open(thread, thread.records.ranges, RangeRecord{id, thread.open_range}).index;
}

void pop_range() {
    if (!profiling()) return;
    ThreadRecords& thread = this_thread();
    std::lock_guard<std::mutex> lock(thread.mutex);
    if (thread.open_range != kNoRecord) thread.open_range = thread.records.ranges[thread.open_range].parent;
}

void ProfiledOperator::begin(const std::string& name) {
    ThreadRecords& thread = this_thread();
    open_ = open(thread, thread.records.operators,
                 OperatorRecord{&name, thread.open_operator, thread.correlation(), c10::getApproximateTime(), 0});
    thread.open_operator = open_.index;
}

void ProfiledOperator::end() {
    close(open_, &RecordsOfThread::operators, [](ThreadRecords& thread, OperatorRecord& record) {
        record.end = c10::getApproximateTime();
        thread.open_operator = record.parent;
    });
}

void ProfiledWork::begin(DeviceWork work, const char* name, int device, size_t bytes) {
    ThreadRecords& thread = this_thread();
    device_ = device;
    start_ = finish_ = stream_ = nullptr;
    const auto now = c10::getApproximateTime();
    if (work != DeviceWork::AliasNow) {
        auto& events = profile().events;
        stream_ = current_stream_handle(device);
        if (start_clock(device)) {
            start_ = events.take(device);
            finish_ = events.take(device);
        }
        if (!start_ || !finish_ || vendor()->event_record(start_, stream_) != DIPU_SUCCESS) {
            events.give(device, start_);
            events.give(device, finish_);
            return lose("recording an event");
        }
    }
    open_ = open(thread, thread.records.work,
                 WorkRecord{work, State::Open, name, device, current_stream(device), bytes, thread.open_operator, thread.open_range,
                            thread.correlation(), now, 0, start_, finish_, 0, 0});
}

void ProfiledWork::end() {
    constexpr size_t kBetweenMeasurements = 64;
    const bool recorded = !finish_ || vendor()->event_record(finish_, stream_) == DIPU_SUCCESS;
    if (!recorded) {
        lose("recording an event");
        return drop();
    }
    const bool kept = close(open_, &RecordsOfThread::work, [&](ThreadRecords& thread, WorkRecord& record) {
        record.end = c10::getApproximateTime();
        record.state = finish_ ? State::Queued : State::Measured;
        if (thread.records.work.size() % kBetweenMeasurements == 0) measure_finished(thread);
    });
    if (kept) return;
    profile().events.give(device_, start_);
    profile().events.give(device_, finish_);
}

void ProfiledWork::drop() {
    close(open_, &RecordsOfThread::work, [](ThreadRecords&, WorkRecord& record) { record.state = State::Dropped; });
    profile().events.give(device_, start_);
    profile().events.give(device_, finish_);
}

void ProfiledCopy::begin_copy(int device, const void* host, size_t bytes, dipuCopyKind kind) {
    if (kind == DIPU_DEVICE_TO_DEVICE) return begin(DeviceWork::Copy, "Memcpy DtoD (Device -> Device)", device, bytes);
    const bool pinned = is_pinned(host);
    if (kind == DIPU_HOST_TO_DEVICE)
        return begin(DeviceWork::Copy, pinned ? "Memcpy HtoD (Pinned -> Device)" : "Memcpy HtoD (Pageable -> Device)", device, bytes);
    begin(DeviceWork::Copy, pinned ? "Memcpy DtoH (Device -> Pinned)" : "Memcpy DtoH (Device -> Pageable)", device, bytes);
}

void ProfiledRuntimeCall::begin(const char* name) {
    ThreadRecords& thread = this_thread();
    open_ = open(thread, thread.records.calls, RuntimeCallRecord{name, thread.correlation(), c10::getApproximateTime(), 0});
}

void ProfiledRuntimeCall::end() {
    close(open_, &RecordsOfThread::calls, [](ThreadRecords&, RuntimeCallRecord& record) { record.end = c10::getApproximateTime(); });
}

}  // namespace dipu
