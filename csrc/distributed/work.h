// The handle of a collective that runs.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "operation.h"

namespace dipu {

// Done or not, and why it failed: all that a stream needs which waits, so that it keeps no tensors alive.
class Completion {
   public:
    void set(std::exception_ptr error);
    bool done() const;
    std::exception_ptr error() const;
    // False if it was not done in time; 0 waits for as long as it takes.
    bool wait(std::chrono::milliseconds limit) const;

   private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    bool done_ = false;
    std::exception_ptr error_;
};

class DeviceWork final : public c10d::Work {
   public:
    // Of one operation, or of `operations` that were issued as one.
    DeviceWork(const Operation& first, int rank, std::vector<at::Tensor> outputs, size_t operations = 1);

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    // The current stream waits; the host only for a synchronous device, for host tensors, at a barrier, for a message from
    // anyone (whom it came from is a number of the host), and if a timeout is given.
    bool wait(std::chrono::milliseconds timeout) override;
    void synchronize() override;
    void blockCurrentStream() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
    float getDuration() const override;
    uint64_t getSequencenumber() const override { return sequence_; }

    // Of the group: one of its operations begins, or is over.
    void started();
    void finished(const Operation& operation, std::exception_ptr error);
    void set_held(bool held) { held_ = held; }

   private:
    bool queue_on_current_stream();
    void wait_on_host(std::chrono::milliseconds limit);
    void complete_futures();

    const std::string described_;
    const uint64_t sequence_;
    const int device_;
    const bool host_waits_;
    const std::vector<at::Tensor> outputs_;
    const std::shared_ptr<Completion> completion_ = std::make_shared<Completion>();
    std::mutex futures_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_, result_future_;    // made when they are asked for
    c10::intrusive_ptr<c10::ivalue::Future> pending_, pending_result_;  // the same, until somebody completes them
    std::mutex progress_mutex_;
    size_t unfinished_;
    std::exception_ptr first_error_;
    std::atomic<c10d::WorkResult> outcome_{c10d::WorkResult::SUCCESS};
    std::atomic<int> source_{kAnySource};
    std::atomic<bool> held_{false};
    std::atomic<int64_t> started_ns_{0}, finished_ns_{0};
};

}  // namespace dipu
