// torch's profiler (Kineto) asks registered profilers for a device's rows: this one gives those of `dipu`.
//
// Rows of a thread: LaunchKernel_dipu_NAME for an operator, LaunchKernel_FUNCTION for each piece of work it queues, waits and allocations.
// Rows of a stream: FUNCTION for each piece of work; its time alone is what the columns of torch's table add up. dipu_NAME and the ranges
// of record_function lie over all work queued inside of them; they are annotations, as the same time must not count twice.
#include <libkineto.h>
#include <output_base.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "../runtime/device.h"
#include "records.h"

#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#define DIPU_HAS_PROFILER_REGISTRY 1  // from torch 2.13 on
#endif

namespace dipu {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using libkineto::ITraceActivity;
using Link = libkineto::getLinkedActivityCallback;

// add_.Tensor runs as dipu_add__tensor.
std::string row_name(const std::string& operator_name) {
    std::string name = "dipu_" + operator_name;
    for (char& letter : name) letter = letter == '.' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return name;
}

std::string row_name(const WorkRecord& work) {
    const bool alias = work.work == DeviceWork::Alias || work.work == DeviceWork::AliasNow;
    return alias ? std::string("alias::") + work.name : work.name;
}

std::string launch_name(const WorkRecord& work) {
    return work.work == DeviceWork::Copy ? "dipuMemcpyAsync" : "LaunchKernel_" + row_name(work);
}

struct Interval {
    int64_t begin, end;
};

// All work of one operator or range on the stream of its first piece.
struct Extent {
    int device = -1;
    int64_t stream = 0;
    Interval time{};

    void add(const WorkRecord& work, Interval more) {
        if (device < 0) {
            *this = {work.device, work.stream, more};
        } else if (device == work.device && stream == work.stream) {
            time = {std::min(time.begin, more.begin), std::max(time.end, more.end)};
        }
    }
};

class TraceWriter {
   public:
    TraceWriter(libkineto::ActivityLogger& logger, libkineto::CpuTraceBuffer& buffer, const std::set<ActivityType>& wanted, Link link,
                const RecordedProfile& profile)
        : logger_(logger), buffer_(buffer), wanted_(wanted), link_(std::move(link)), profile_(profile) {}

    void write() {
        for (const RecordsOfThread& thread : profile_.threads) write(thread);
    }
    // The streams that got rows, by device.
    const std::map<int, std::set<int64_t>>& streams() const { return streams_; }

   private:
    void write(const RecordsOfThread& thread) {
        std::vector<Extent> operators(thread.operators.size()), ranges(thread.ranges.size());
        for (const RuntimeCallRecord& call : thread.calls)
            if (call.end) host_row(thread, call.name, call.correlation, {nanoseconds(call.begin), nanoseconds(call.end)});
        for (const OperatorRecord& each : thread.operators)
            if (each.end) host_row(thread, "LaunchKernel_" + row_name(*each.name), each.correlation, {nanoseconds(each.begin), nanoseconds(each.end)});
        for (const WorkRecord& work : thread.work) {
            if (work.state != WorkRecord::State::Measured) continue;
            const Interval on_host{nanoseconds(work.begin), nanoseconds(work.end)};
            const Interval time = work.work == DeviceWork::AliasNow ? on_host : on_device(work);
            ++flow_;
            host_row(thread, launch_name(work), work.correlation, on_host, flow_);
            device_row(work, time);
            for (size_t i = work.in_operator; i != kNoRecord; i = thread.operators[i].parent) operators[i].add(work, time);
            for (size_t i = work.in_range; i != kNoRecord; i = thread.ranges[i].parent) ranges[i].add(work, time);
        }
        for (size_t i = 0; i < operators.size(); ++i) annotation(operators[i], row_name(*thread.operators[i].name));
        for (size_t i = 0; i < ranges.size(); ++i)
            if (const ITraceActivity* range = linked(thread.ranges[i].correlation)) annotation(ranges[i], range->name());
    }

    int64_t nanoseconds(c10::approx_time_t ticks) const { return profile_.nanoseconds(ticks); }
    Interval on_device(const WorkRecord& work) const {
        const int64_t begin = profile_.device_zero[work.device] + static_cast<int64_t>(work.started * 1e6);
        return {begin, begin + static_cast<int64_t>(work.took * 1e6)};
    }
    const ITraceActivity* linked(uint64_t correlation) const {
        return link_ && correlation ? link_(static_cast<int32_t>(correlation)) : nullptr;
    }

    bool wants(ActivityType type) const { return wanted_.count(type) > 0; }

    GenericTraceActivity& row(ActivityType type, const std::string& name, Interval time, int64_t device, int64_t resource) {
        buffer_.emplace_activity(buffer_.span, type, name);
        GenericTraceActivity& made = libkineto::CpuTraceBuffer::toRef(buffer_.activities.back());
        made.startTime = time.begin;
        made.endTime = std::max(time.begin, time.end);
        made.device = static_cast<int32_t>(device);
        made.resource = static_cast<int32_t>(resource);
        return made;
    }

    void host_row(const RecordsOfThread& thread, const std::string& name, uint64_t correlation, Interval time, uint32_t flow = 0) {
        if (!wants(ActivityType::PRIVATEUSE1_RUNTIME)) return;
        const ITraceActivity* parent = linked(correlation);
        if (parent) {  // two conversions of one clock differ by nanoseconds; a row that sticks out of its operator's would not count as its part
            const int64_t end = parent->timestamp() + parent->duration();
            time.begin = std::clamp(time.begin, parent->timestamp(), end);
            time.end = std::clamp(time.end, time.begin, end);
        }
        GenericTraceActivity& made = row(ActivityType::PRIVATEUSE1_RUNTIME, name, time, getpid(), thread.thread_id);
        made.threadId = thread.thread_id;
        made.linked = parent;
        if (flow) {
            made.id = static_cast<int32_t>(flow);
            made.flow.id = flow;
            made.flow.type = libkineto::kLinkAsyncCpuGpu;
            made.flow.start = 1;
            made.addMetadata("correlation", flow);
        }
        made.log(logger_);
    }

    void device_row(const WorkRecord& work, Interval time) {
        const ActivityType type = work.work == DeviceWork::Copy ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL;
        if (!wants(type)) return;
        GenericTraceActivity& made = row(type, row_name(work), time, work.device, work.stream);
        made.id = static_cast<int32_t>(flow_);
        made.linked = linked(work.correlation);
        made.flow.id = flow_;
        made.flow.type = libkineto::kLinkAsyncCpuGpu;
        made.flow.start = 0;
        made.addMetadata("device", work.device);
        made.addMetadata("stream", work.stream);
        made.addMetadata("correlation", flow_);
        if (work.work == DeviceWork::Copy) {
            made.addMetadata("bytes", work.bytes);
            if (time.end > time.begin)
                made.addMetadata("memory bandwidth (GB/s)", static_cast<double>(work.bytes) / static_cast<double>(time.end - time.begin));
        }
        made.log(logger_);
        buffer_.gpuOpCount++;
        streams_[work.device].insert(work.stream);
    }

    void annotation(const Extent& extent, const std::string& name) {
        if (extent.device < 0 || !wants(ActivityType::GPU_USER_ANNOTATION)) return;
        row(ActivityType::GPU_USER_ANNOTATION, name, extent.time, extent.device, extent.stream).log(logger_);
    }

    libkineto::ActivityLogger& logger_;
    libkineto::CpuTraceBuffer& buffer_;
    const std::set<ActivityType>& wanted_;
    const Link link_;
    const RecordedProfile& profile_;
    uint32_t flow_ = 0;
    std::map<int, std::set<int64_t>> streams_;
};

class ProfilerSession final : public libkineto::IActivityProfilerSession {
   public:
    explicit ProfilerSession(std::set<ActivityType> wanted) : wanted_(std::move(wanted)) {}
    ~ProfilerSession() override {
        if (recording_) stop();
    }

    void start() override {
        start_profile();
        recording_ = true;
        began_ = c10::getTime();
        status_ = libkineto::TraceStatus::RECORDING;
    }
    void stop() override {
        stop_profile();
        recording_ = false;
        ended_ = c10::getTime();
        status_ = libkineto::TraceStatus::PROCESSING;
    }
    std::vector<std::string> errors() override { return errors_; }

    void processTrace(libkineto::ActivityLogger& logger) override { processTrace(logger, nullptr, began_, ended_); }
    void processTrace(libkineto::ActivityLogger& logger, Link link, int64_t, int64_t) override {
        buffer_->span = libkineto::TraceSpan(began_, ended_, "dipu");
        buffer_->gpuOpCount = 0;
        const RecordedProfile profile = collect_profile();
        if (profile.nanoseconds) {
            TraceWriter writer(logger, *buffer_, wanted_, std::move(link), profile);
            writer.write();
            streams_ = writer.streams();
        }
        for (const auto& [device, streams] : streams_) logger.handleDeviceInfo(device_info(device), began_);
        if (profile.lost > 0) {
            errors_.push_back(c10::str("dipu: ", profile.lost, " pieces of work are missing in this profile: ", profile.reason));
            TORCH_WARN(errors_.back());
        }
    }

    // Kineto names the first sixteen devices "GPU n" when the rows are written, then asks for one name: the last one counts.
    std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
        return streams_.empty() ? nullptr : std::make_unique<libkineto::DeviceInfo>(device_info(streams_.begin()->first));
    }
    std::vector<libkineto::ResourceInfo> getResourceInfos() override {
        std::vector<libkineto::ResourceInfo> infos;
        for (const auto& [device, streams] : streams_)
            for (const int64_t stream : streams) infos.push_back({stream, stream, device, "stream " + std::to_string(stream)});
        return infos;
    }
    std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

    void pushCorrelationId(uint64_t id) override { push_correlation(id); }
    void popCorrelationId() override { pop_correlation(); }
    void pushUserCorrelationId(uint64_t id) override { push_range(id); }
    void popUserCorrelationId() override { pop_range(); }

   private:
    static libkineto::DeviceInfo device_info(int device) {
        return {device, libkineto::kExceedMaxPid + device, device_properties(device).name, "dipu:" + std::to_string(device)};
    }

    const std::set<ActivityType> wanted_;
    std::map<int, std::set<int64_t>> streams_;
    std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    int64_t began_ = 0, ended_ = 0;
    bool recording_ = false;
    std::vector<std::string> errors_;
};

class DeviceProfiler final : public libkineto::IActivityProfiler {
   public:
    const std::string& name() const override { return name_; }
    const std::set<ActivityType>& availableActivities() const override { return activities_; }
    // No session where nothing of the device is wanted: a profile of the CPU alone asks for rows of the runtime too.
    std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted, const libkineto::Config&) override {
        std::set<ActivityType> mine;
        std::set_intersection(wanted.begin(), wanted.end(), activities_.begin(), activities_.end(), std::inserter(mine, mine.begin()));
        if (mine.empty() || (mine.size() == 1 && mine.count(ActivityType::PRIVATEUSE1_RUNTIME))) return nullptr;
        return std::make_unique<ProfilerSession>(std::move(mine));
    }
    std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                   const libkineto::Config& config) override {
        return configure(wanted, config);
    }

   private:
    const std::string name_ = "dipu";
    const std::set<ActivityType> activities_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_USER_ANNOTATION,
                                             ActivityType::PRIVATEUSE1_RUNTIME};
};

const bool registered = [] {
    const auto make = []() -> std::unique_ptr<libkineto::IActivityProfiler> { return std::make_unique<DeviceProfiler>(); };
#ifdef DIPU_HAS_PROFILER_REGISTRY
    torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(make);
#else
    libkineto::api().registerProfilerFactory(make);
#endif
    return true;
}();

}  // namespace
}  // namespace dipu
