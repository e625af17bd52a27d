#include "work.h"

#include <ATen/core/ivalue.h>

#include <unordered_map>

#include "communication_stream.h"
#include "lane.h"

namespace dipu {
namespace {

std::string what(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const c10::Error& failure) {
        return failure.what_without_backtrace();
    } catch (const std::exception& failure) {
        return failure.what();
    } catch (...) {
        return "an unknown error";
    }
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The task that makes a stream wait. Its error surfaces at the stream's next synchronisation.
int wait_in_stream(void* argument, char* error, size_t size) {
    const auto& completion = *static_cast<std::shared_ptr<Completion>*>(argument);
    completion->wait(kNoTimeout);
    if (!completion->error()) return 0;
    std::snprintf(error, size, "%s", what(completion->error()).c_str());
    return 1;
}

// The title under which a profiler shows the operation, from its call to its end; it does not copy it.
const char* title(const Operation& operation) {
    static std::mutex mutex;
    static auto* titles = new std::unordered_map<std::string, std::unique_ptr<std::string>>;
    std::lock_guard<std::mutex> lock(mutex);
    auto& kept = (*titles)[operation.name];
    if (!kept) kept = std::make_unique<std::string>(std::string("dicl:") + operation.name);
    return kept->c_str();
}

}  // namespace

void Completion::set(std::exception_ptr error) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        done_ = true;
        error_ = std::move(error);
    }
    changed_.notify_all();
}

bool Completion::done() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
}

std::exception_ptr Completion::error() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
}

bool Completion::wait(std::chrono::milliseconds limit) const {
    std::unique_lock<std::mutex> lock(mutex_);
    if (limit > kNoTimeout) return changed_.wait_for(lock, limit, [&] { return done_; });
    changed_.wait(lock, [&] { return done_; });
    return true;
}

DeviceWork::DeviceWork(const Operation& first, int rank, std::vector<at::Tensor> outputs, size_t operations)
    : c10d::Work(rank, operations > 1 ? c10d::OpType::COALESCED : first.type, title(first), first.inputs),
      described_(first.described()),
      sequence_(first.sequence),
      device_(first.device),
      host_waits_(first.type == c10d::OpType::BARRIER || first.type == c10d::OpType::RECVANYSOURCE),
      outputs_(std::move(outputs)),
      unfinished_(operations) {}

bool DeviceWork::isCompleted() { return completion_->done(); }
bool DeviceWork::isSuccess() const { return completion_->done() && !completion_->error(); }
std::exception_ptr DeviceWork::exception() const { return completion_->error(); }
int DeviceWork::sourceRank() const { return source_; }
std::vector<at::Tensor> DeviceWork::result() { return outputs_; }

float DeviceWork::getDuration() const {
    TORCH_CHECK(finished_ns_ > 0, "dicl: ", described_, " is not finished, so it has no duration yet");
    return static_cast<float>(finished_ns_ - started_ns_) / 1e6f;
}

bool DeviceWork::queue_on_current_stream() {
    if (device_ < 0 || host_waits_ || !vendor().has(DIPU_FEATURE_ASYNCHRONOUS) || !vendor()->stream_run) return false;
    auto* argument = new std::shared_ptr<Completion>(completion_);
    const auto destroy = [](void* given) { delete static_cast<std::shared_ptr<Completion>*>(given); };
    check(vendor()->stream_run(current_stream_handle(device_), described_.c_str(), wait_in_stream, destroy, argument),
          "waiting for a collective");
    return true;
}

void DeviceWork::wait_on_host(std::chrono::milliseconds limit) {
    if (!completion_->wait(limit))
        C10_THROW_ERROR(DistBackendError, c10::str("dicl: ", described_, " was waited for ", limit.count(), " ms and is not finished; it goes on"));
    if (auto error = completion_->error()) std::rethrow_exception(error);
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
    TORCH_CHECK(!held_, "dicl: ", described_, " is waited for inside of the block that coalesces it; it starts when the block ends");
    const bool bounded = timeout > kNoTimeout;
    if (completion_->done() || bounded || !queue_on_current_stream()) wait_on_host(timeout);
    return true;
}

void DeviceWork::synchronize() { wait(kNoTimeout); }
void DeviceWork::blockCurrentStream() { wait(kNoTimeout); }

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
    std::unique_lock<std::mutex> lock(futures_mutex_);
    if (!future_) {
        std::vector<c10::Device> devices;
        if (device_ >= 0) devices.push_back(dipu_device(device_));
        future_ = pending_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    }
    auto future = future_;
    lock.unlock();
    if (completion_->done()) complete_futures();
    return future;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFutureResult() {
    std::unique_lock<std::mutex> lock(futures_mutex_);
    if (!result_future_) result_future_ = pending_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
    auto future = result_future_;
    lock.unlock();
    if (completion_->done()) complete_futures();
    return future;
}

// Callbacks run in here, behind a stream that has nothing queued: the results are there.
void DeviceWork::complete_futures() {
    c10::intrusive_ptr<c10::ivalue::Future> future, result;
    {
        std::lock_guard<std::mutex> lock(futures_mutex_);
        future = std::move(pending_);
        result = std::move(pending_result_);
    }
    if (result) result->markCompleted(c10::IValue(static_cast<int64_t>(outcome_.load())));
    if (!future) return;
    const OnCommunicationStream scope(device_);
    if (const auto error = completion_->error())
        future->setError(error);
    else
        future->markCompleted(c10::IValue(outputs_));
}

void DeviceWork::started() {
    int64_t never = 0;
    started_ns_.compare_exchange_strong(never, now_ns());
}

void DeviceWork::finished(const Operation& operation, std::exception_ptr error) {
    {
        std::lock_guard<std::mutex> lock(progress_mutex_);
        if (error && !first_error_) {
            first_error_ = error;
            outcome_ = operation.outcome;
        }
        if (operation.source != kAnySource) source_ = operation.source;
        if (--unfinished_ > 0) return;
        error = first_error_;
    }
    finished_ns_ = now_ns();
    completion_->set(error);
    finish(error);  // ends the profiler's row
    bool wanted = false;
    {
        std::lock_guard<std::mutex> lock(futures_mutex_);
        wanted = pending_ || pending_result_;
    }
    // A callback may wait for another collective of the group: not on this thread.
    if (wanted) run_in_background([self = c10::intrusive_ptr<DeviceWork>::reclaim_copy(this)] { self->complete_futures(); });
}

}  // namespace dipu
