// Which calls are looked at when not all are: decided by what a call looks like, in the time of a lookup.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <string_view>
#include <unordered_map>

namespace op_tools {

// Nothing is drawn: no random state is touched, runs repeat, and the ranks of a job agree on what a signature is. That is an
// operator with the dtypes, shapes and strides of its tensors and its whole numbers. It is taken at its first call, and then about
// once in `refresh` steps: sooner or later by up to a half, and any one of its calls in a step, or a mistake that comes in every
// second call, or in the last of 24 layers, would never be met. Besides, one call in `every` of all calls is taken. Of `shares` ranks each
// begins with other signatures, and comes back at other steps.
//
// Steps are those of an optimizer. A program that goes on without one is counted by its calls.
class Sampler {
   public:
    Sampler(int64_t every, int64_t refresh, int64_t share, int64_t shares);

    bool takes(std::string_view name, std::string_view overload, c10::ArrayRef<const c10::IValue> inputs);
    bool takes(uint64_t signature);
    // The signature that this thread asked for last.
    static uint64_t asked();

    void stepped();
    int64_t step();
    void set_share(int64_t share, int64_t shares);
    int64_t refresh();
    void set_refresh(int64_t steps);
    // Nothing is taken before this time of the steady clock, in nanoseconds; what was due comes later.
    int64_t closed_until() const { return closed_until_.load(std::memory_order_relaxed); }
    void set_closed_until(int64_t nanoseconds) { closed_until_.store(nanoseconds, std::memory_order_relaxed); }
    // A signature whose calls cost more than others is taken once in so many rounds.
    void set_rounds(uint64_t signature, double rounds);

    int64_t calls();
    int64_t taken();
    size_t signatures();
    // Calls that `refresh` steps take of the signatures that come again and again.
    double taken_in_a_round();

   private:
    struct Known {
        int64_t looked;         // step at which it was taken last, or first seen
        int64_t seen;           // step of its last call
        int64_t round = -1;     // in which it was counted
        float wait = 0;         // until it is taken again, in rounds
        float rounds = 1;       // usually
        uint32_t looks = 0;
        uint32_t calls = 0;     // in this step
        uint32_t usual = 1;     // in an earlier step
        int32_t passes = -1;    // calls that it still passes over, once it is due; -1: not due yet
    };

    bool open() const;
    bool is_due(uint64_t signature, Known& known);
    void count(Known& known);
    void wait(uint64_t signature, Known& known, float at_least);
    void next_step();
    void forget();

    std::atomic<int64_t> closed_until_{0};
    const int64_t every_;
    int64_t refresh_;  // 0: never again
    int64_t share_, shares_;
    int64_t passed_over_;
    int64_t step_ = 0, calls_ = 0, taken_ = 0;
    int64_t calls_in_step_ = 0, usual_calls_ = 0;  // usual: of an optimizer's step, 0 where there was none
    int64_t round_ = 0, round_began_ = 0;
    double in_this_round_ = 0, in_last_round_ = 0;
    std::unordered_map<uint64_t, Known> known_;
};

void bind_sampler(pybind11::module_& module);

}  // namespace op_tools
