// The records of a profile, and who starts and ends it (session.cpp turns them into rows of the trace).
#pragma once
#include <c10/util/ApproximateClock.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "recorder.h"

namespace dipu {

constexpr size_t kNoRecord = std::numeric_limits<size_t>::max();

// Host times are ticks of torch's own clock; `RecordedProfile::nanoseconds` converts them.
struct OperatorRecord {
    const std::string* name;
    size_t parent;  // the operator around it on this thread
    uint64_t correlation;
    c10::approx_time_t begin, end;  // end is 0 while it runs
};

struct WorkRecord {
    enum class State : uint8_t { Open, Dropped, Queued, Measured, Lost };

    DeviceWork work;
    State state;
    const char* name;
    int device;
    int64_t stream;
    size_t bytes;          // of copies
    size_t in_operator;    // the innermost, or kNoRecord
    size_t in_range;       // of record_function, likewise
    uint64_t correlation;  // with torch's own row of the operator
    c10::approx_time_t begin, end;
    void *start, *finish;  // events, until it is measured
    // on the device: milliseconds since its clock was started; for AliasNow unused
    double started, took;
};

struct RuntimeCallRecord {
    const char* name;
    uint64_t correlation;
    c10::approx_time_t begin, end;
};

// A range of record_function.
struct RangeRecord {
    uint64_t correlation;
    size_t parent;
};

struct RecordsOfThread {
    int32_t thread_id = 0;  // the system's
    std::vector<OperatorRecord> operators;
    std::vector<WorkRecord> work;
    std::vector<RuntimeCallRecord> calls;
    std::vector<RangeRecord> ranges;
};

struct RecordedProfile {
    std::vector<RecordsOfThread> threads;
    std::function<c10::time_t(c10::approx_time_t)> nanoseconds;  // since the epoch
    std::vector<c10::time_t> device_zero;                        // by device: when its clock was started
    size_t lost = 0;                                             // work that the vendor's events could not measure
    std::string reason;                                          // the vendor's, for the first of them
};

// One profile at a time, of the whole process; a new one ends the one before.
void start_profile();
void stop_profile();
// What was recorded since the start; waits until all of it has run.
RecordedProfile collect_profile();

// torch's numbers for what this thread runs now: operators, and ranges of record_function.
void push_correlation(uint64_t id);
void pop_correlation();
void push_range(uint64_t id);
void pop_range();

}  // namespace dipu
