#include "queue.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace dipu_vendor {

bool flag_from(const char* variable, bool fallback) {
    const char* text = std::getenv(variable);
    if (!text || !*text) return fallback;
    return std::strcmp(text, "0") != 0 && std::strcmp(text, "false") != 0;
}

namespace {

int64_t number_from(const char* variable, int64_t fallback) {
    const char* text = std::getenv(variable);
    return text && *text ? std::strtoll(text, nullptr, 10) : fallback;
}

std::atomic<bool> is_asynchronous{flag_from("DIPU_HOST_ASYNC", false)};
std::atomic<int64_t> delay{number_from("DIPU_HOST_DELAY_US", 0)};

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool asynchronous() { return is_asynchronous.load(std::memory_order_relaxed); }
void set_asynchronous(bool on) { is_asynchronous = on; }
int64_t delay_us() { return delay.load(std::memory_order_relaxed); }
void set_delay_us(int64_t microseconds) { delay = microseconds; }

namespace {

// A process that is forked off has none of the threads, and locks as they happened to be.
std::atomic<bool> threads_are_lost{false};

void expect_forks() {
    static const int refused = pthread_atfork(nullptr, nullptr, [] { threads_are_lost = true; });
    if (refused) throw std::runtime_error("out of memory");
}

void refuse_after_fork() {
    if (asynchronous() && threads_are_lost.load(std::memory_order_relaxed))
        throw std::runtime_error(
            "the queues of the simulated chip (DIPU_HOST_ASYNC=1) do not work on in a forked process. Start processes with the 'spawn' "
            "method, fork before the device is used, or unset DIPU_HOST_ASYNC.");
}

}  // namespace

Stream::~Stream() {
    if (!thread_.joinable()) return;
    if (threads_are_lost) {  // nobody is there to be waited for
        thread_.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Stream::push(Task task) {
    refuse_after_fork();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) {
        expect_forks();
        thread_ = std::thread([this] { run(); });
    }
    tasks_.push_back(std::move(task));
    ++pushed_;
    wake_.notify_one();
}

void Stream::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        std::string failure;
        if (int64_t us = delay_us(); us > 0 && task.delayed) std::this_thread::sleep_for(std::chrono::microseconds(us));
        try {
            task.body();
        } catch (const std::exception& error) {
            failure = task.name + ": " + what(error);
        }
        task.body = nullptr;  // free what it owned before the task counts as finished
        lock.lock();
        if (!failure.empty() && failure_.empty()) failure_ = failure;
        ++finished_;
        done_.notify_all();
    }
}

bool Stream::idle() {
    refuse_after_fork();
    std::lock_guard<std::mutex> lock(mutex_);
    return finished_ == pushed_;
}

void Stream::synchronize() {
    refuse_after_fork();
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t goal = pushed_;
    done_.wait(lock, [&] { return finished_ >= goal; });
    if (failure_.empty()) return;
    std::string failure = std::move(failure_);
    failure_.clear();
    lock.unlock();
    throw std::runtime_error(failure);
}

std::shared_ptr<Event> make_event(bool timed) { return std::make_shared<Event>(timed); }

void Event::finish(uint64_t recording) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (recording <= finished_) return;  // a later recording, on another stream, was faster
    finished_ = recording;
    if (timed_) nanoseconds_ = now_ns();
    done_.notify_all();
}

void Event::wait_for(uint64_t recording) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return finished_ >= recording; });
}

void Event::record(const std::shared_ptr<Event>& event, Stream& stream) {
    refuse_after_fork();
    uint64_t recording;
    {
        std::lock_guard<std::mutex> lock(event->mutex_);
        recording = ++event->recorded_;
    }
    if (asynchronous() || !stream.idle())
        stream.push_mark("event record", [event, recording] { event->finish(recording); });
    else
        event->finish(recording);
}

void Event::block(const std::shared_ptr<Event>& event, Stream& stream) {
    refuse_after_fork();
    uint64_t recording;
    {
        std::lock_guard<std::mutex> lock(event->mutex_);
        recording = event->recorded_;
        if (event->finished_ >= recording) return;
    }
    stream.push("event wait", [event, recording] { event->wait_for(recording); });
}

void Event::synchronize() {
    refuse_after_fork();
    uint64_t recording;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        recording = recorded_;
    }
    wait_for(recording);
}

bool Event::ready() {
    refuse_after_fork();
    std::lock_guard<std::mutex> lock(mutex_);
    return finished_ >= recorded_;
}

double Event::elapsed_ms(Event& start, Event& end) {
    start.synchronize();
    end.synchronize();
    return static_cast<double>(end.nanoseconds_ - start.nanoseconds_) / 1e6;
}

}  // namespace dipu_vendor
