// What the ranks of a group tell each other beside the collectives, through the store: that they live, and which call they are at.
//
// A process tells a sign of life twice a second, and the state of a group when it changed; it costs a collective nothing. When an
// operation fails, whoever notices first looks who still lives and where everybody is, and writes down what it found; the others read
// that as the reason, without waiting for their own timeout.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../runtime/vendor.h"

namespace dipu {

// Where a rank is in its sequence of calls.
struct Progress {
    uint64_t called = 0, finished = 0;  // sequence numbers of collectives
    std::string call;                   // the last collective that was called
    std::string message;                // the last send or receive
};

// One group, as a process takes part in it.
class Membership {
 public:
    // Called with the reason when another rank has found that the group failed; on the thread of the heartbeats.
    using OnFailure = std::function<void(const std::string& reason)>;

    Membership(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int64_t> global_ranks, OnFailure on_failure);
    ~Membership();

    void called(bool collective, uint64_t sequence, const char* name, std::string described);
    void finished(uint64_t sequence);
    // Operations are under way: the group's failure is asked for, too.
    void set_busy(bool busy);

    // Who is there and where; for an operation that failed. Takes about three seconds.
    std::string roll_call(bool collective, uint64_t sequence, const char* name);
    // The reason that the group failed for: this one, or the one that another rank wrote down before.
    std::string write_down(const std::string& reason);

    std::string rank_name(int rank) const;

    struct State;

 private:
    std::shared_ptr<State> state_;
};

// What to say about the store when it does not answer, e.g. that it lives in the process of rank 0.
DIPU_API void set_store_owner(const std::string& description);

}  // namespace dipu
