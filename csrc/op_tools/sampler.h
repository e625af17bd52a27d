// Which calls are looked at when not all are: decided by what a call looks like, in the time of a lookup.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace op_tools {

// Nothing is drawn: no random state is touched, and runs repeat. A signature is an operator with the dtypes, shapes and strides
// of its tensors and its whole numbers. It is taken at its first call, and again once `refresh` steps have passed, spread over those
// steps; besides, one call in `every` of all calls. Of `shares` ranks each begins with other signatures and other calls.
class Sampler {
   public:
    Sampler(int64_t every, int64_t refresh, int64_t share, int64_t shares)
        : every_(every), refresh_(refresh), share_(share), shares_(shares < 1 ? 1 : shares), passed_over_(every * share / shares_) {}

    bool takes(const void* op, c10::ArrayRef<const c10::IValue> inputs);

    void set_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
    int64_t refresh() const { return refresh_.load(std::memory_order_relaxed); }
    void set_refresh(int64_t steps) { refresh_.store(steps, std::memory_order_relaxed); }
    int64_t calls() const { return calls_; }
    int64_t taken() const { return taken_; }
    size_t signatures();

   private:
    const int64_t every_;
    std::atomic<int64_t> refresh_;  // 0: never again
    const int64_t share_, shares_;
    std::atomic<int64_t> step_{0}, calls_{0}, taken_{0};
    std::mutex mutex_;
    std::unordered_map<uint64_t, int64_t> due_;  // signature -> step from which on it is taken
    int64_t passed_over_;
};

}  // namespace op_tools
