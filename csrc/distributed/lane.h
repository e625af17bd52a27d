// Threads for jobs that wait, and jobs that run one after the other on them.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace dipu {

// Runs the job on a thread of its own kind: there are as many as jobs are waiting at the moment, so no job holds up another. A job
// must not throw. Threads are kept for a while and never waited for: a job that hangs does not keep the process from ending.
void run_in_background(std::function<void()> job);

// Jobs in order.
class Lane : public std::enable_shared_from_this<Lane> {
   public:
    void push(std::function<void()> job);

   private:
    void drain();

    std::mutex mutex_;
    std::deque<std::function<void()>> jobs_;
    bool running_ = false;
};

}  // namespace dipu
