// Shows what an operator was given and gave (DIPU_DUMP_OP_ARGS), and compares it with the CPU (DIPU_AUTOCOMPARE_OPS_LIST); tells a
// profile when operators begin and end.
//
// A wrapper that is instrumented calls itself through `instrumented`; to be shown its arguments are boxed. What goes wrong in here is
// printed and never reaches the program.
#pragma once
#include <ATen/core/stack.h>

#include <tuple>
#include <utility>
#include <vector>

#include "../profiler/recorder.h"
#include "fallback.h"
#include "settings.h"

namespace dipu {

// Set while an instrumented call runs: what it calls itself is not shown.
DIPU_API bool& inside_instrumented_call();
// Set while the instrumentation itself works: its copies and comparisons are not reported.
DIPU_API bool& instrumentation_is_silent();
inline bool must_show_call() {
    return C10_UNLIKELY(settings.instrument.load(std::memory_order_relaxed) & kShowsCalls) && !inside_instrumented_call();
}
// The next wrapper that this thread calls is the one that is instrumented.
struct DIPU_API WrapperAgain {
    WrapperAgain();
    ~WrapperAgain();
};
DIPU_API bool begins_instrumented_call();
inline bool must_instrument() { return C10_UNLIKELY(settings.instrument.load(std::memory_order_relaxed) != 0) && begins_instrumented_call(); }

// The line of level 1: which function of the vendor serves the call.
DIPU_API void print_call(const OpRecord& record, const char* function, int line = 0);

// Before and after one call.
class DIPU_API InstrumentedCall {
   public:
    InstrumentedCall(OpRecord& record, torch::jit::Stack arguments);
    ~InstrumentedCall();
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
C10_NOINLINE auto instrumented(OpRecord& record, Arguments&&... arguments) -> decltype(Wrapper(std::forward<Arguments>(arguments)...)) {
    using Result = decltype(Wrapper(std::forward<Arguments>(arguments)...));
    ProfiledOperator profiled(record.name);
    if (!must_show_call()) {
        WrapperAgain again;
        return Wrapper(std::forward<Arguments>(arguments)...);
    }
    InstrumentedCall call(record, torch::jit::Stack{detail::boxed(arguments)...});
    torch::jit::Stack results;
    if constexpr (std::is_void_v<Result>) {
        Wrapper(std::forward<Arguments>(arguments)...);
        call.finish(results);
    } else {
        decltype(auto) result = Wrapper(std::forward<Arguments>(arguments)...);
        detail::box_result(results, result);
        call.finish(results);
        return static_cast<Result>(result);
    }
}

}  // namespace dipu
