// Streams and events of the simulated chip.
//
// Synchronous by default: work is done when the call returns. In asynchronous mode each stream has a thread that runs its
// tasks in order, after an artificial delay if one is set, so that a missing synchronisation is wrong every time and not
// now and then.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "errors.h"

namespace dipu_vendor {

// A variable that is on or off: 0 and false are off.
bool flag_from(const char* variable, bool fallback);

bool asynchronous();
void set_asynchronous(bool on);
int64_t delay_us();
void set_delay_us(int64_t microseconds);

class Stream {
   public:
    explicit Stream(int device) : device_(device) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    int device() const { return device_; }
    void push(const char* name, std::function<void()> body) { push(Task{name, std::move(body), true}); }
    // A mark: the artificial delay stands in front of work only, so that the distance of two events is the work's own.
    void push_mark(const char* name, std::function<void()> body) { push(Task{name, std::move(body), false}); }
    bool idle();
    // Waits for all that was pushed before; throws std::runtime_error with the first failure since the last call.
    void synchronize();

   private:
    struct Task {
        std::string name;
        std::function<void()> body;
        bool delayed;
    };
    void push(Task task);
    void run();

    const int device_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::deque<Task> tasks_;
    uint64_t pushed_ = 0, finished_ = 0;
    std::string failure_;
    bool stop_ = false;
    std::thread thread_;
};

// Shared: a queued wait keeps the event alive after its owner dropped it.
class Event {
   public:
    explicit Event(bool timed) : timed_(timed) {}
    bool timed() const { return timed_; }
    static void record(const std::shared_ptr<Event>& event, Stream& stream);
    void synchronize();
    bool ready();
    // The stream waits for the latest recording.
    static void block(const std::shared_ptr<Event>& event, Stream& stream);
    static double elapsed_ms(Event& start, Event& end);

   private:
    void finish(uint64_t recording);
    void wait_for(uint64_t recording);

    const bool timed_;
    std::mutex mutex_;
    std::condition_variable done_;
    uint64_t recorded_ = 0, finished_ = 0;
    int64_t nanoseconds_ = 0;
};

std::shared_ptr<Event> make_event(bool timed);

}  // namespace dipu_vendor
