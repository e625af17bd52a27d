// Shows what an operator was given and gave (DIPU_DUMP_OP_ARGS), and compares it with the CPU (DIPU_AUTOCOMPARE_OPS_LIST).
//
// A wrapper that is watched calls itself through `watched`, which boxes its arguments. What goes wrong in here is printed and
// never reaches the program.
#pragma once
#include <ATen/core/stack.h>

#include <tuple>
#include <utility>
#include <vector>

#include "fallback.h"
#include "switches.h"

namespace dipu {

// Set while a watched call runs: what it calls itself is not shown.
DIPU_API bool& watched_now();
// Set while the watch itself works: copies and comparisons of its own are not reported.
DIPU_API bool& watched_quietly();
inline bool must_watch() { return C10_UNLIKELY(switches.watching.load(std::memory_order_relaxed)) && !watched_now(); }

// The line of level 1: which function of the vendor serves the call.
DIPU_API void announce(const OpRecord& record, const char* function, int line = 0);

// Before and after one call.
class DIPU_API Watch {
   public:
    Watch(OpRecord& record, torch::jit::Stack arguments);
    ~Watch();
    void finish(const torch::jit::Stack& results);

   private:
    OpRecord& record_;
    torch::jit::Stack arguments_, on_cpu_;
    std::string given_;
    bool compares_ = false;
};

namespace detail {

template <class T>
void box_result(torch::jit::Stack& stack, const T& value) {
    stack.emplace_back(value);
}
template <class... T>
void box_result(torch::jit::Stack& stack, const std::tuple<T...>& values) {
    std::apply([&](const auto&... value) { (stack.emplace_back(value), ...); }, values);
}

}  // namespace detail

template <auto Wrapper, class... Arguments>
C10_NOINLINE decltype(auto) watched(OpRecord& record, Arguments&&... arguments) {
    using Result = decltype(Wrapper(std::forward<Arguments>(arguments)...));
    Watch watch(record, torch::jit::Stack{detail::boxed(arguments)...});
    torch::jit::Stack results;
    if constexpr (std::is_void_v<Result>) {
        Wrapper(std::forward<Arguments>(arguments)...);
        watch.finish(results);
    } else {
        decltype(auto) result = Wrapper(std::forward<Arguments>(arguments)...);
        detail::box_result(results, result);
        watch.finish(results);
        return static_cast<Result>(result);
    }
}

}  // namespace dipu
