#include "lane.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <thread>

namespace dipu {
namespace {

constexpr std::chrono::seconds kKept{10};

struct Background {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void()>> jobs;
    size_t idle = 0;
};

Background& background() {
    static auto* instance = new Background;  // never destroyed: threads may outlive static destruction
    return *instance;
}

void work() {
    pthread_setname_np(pthread_self(), "dicl");
    auto& pool = background();
    std::unique_lock<std::mutex> lock(pool.mutex);
    for (;;) {
        while (!pool.jobs.empty()) {
            auto job = std::move(pool.jobs.front());
            pool.jobs.pop_front();
            lock.unlock();
            job();
            job = nullptr;  // what it owned is freed before it counts as done, and without the lock
            lock.lock();
        }
        ++pool.idle;
        const bool called = pool.wake.wait_for(lock, kKept, [&] { return !pool.jobs.empty(); });
        --pool.idle;
        if (!called) return;
    }
}

}  // namespace

void run_in_background(std::function<void()> job) {
    auto& pool = background();
    {
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.jobs.push_back(std::move(job));
        if (pool.jobs.size() <= pool.idle) {
            pool.wake.notify_one();
            return;
        }
    }
    std::thread(work).detach();
}

void Lane::push(std::function<void()> job) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        jobs_.push_back(std::move(job));
        if (running_) return;
        running_ = true;
    }
    run_in_background([self = shared_from_this()] { self->drain(); });
}

void Lane::drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!jobs_.empty()) {
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        job = nullptr;
        lock.lock();
    }
    running_ = false;
}

}  // namespace dipu
