// Every operator that has no wrapper, and every call a wrapper does not cover: by alias where the vendor allows it, by copies elsewhere.
#pragma once
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/stack.h>

#include <tuple>

#include "record.h"

namespace dipu {

DIPU_API void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);
DIPU_API void fallback(OpRecord& record, torch::jit::Stack* stack);
// The CPU's kernel, below autograd and autocast.
DIPU_API void call_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

namespace detail {

template <class Result>
struct Unbox;
template <>
struct Unbox<void> {
    static void from(torch::jit::Stack&) {}
};
template <>
struct Unbox<at::Tensor> {
    static at::Tensor from(torch::jit::Stack& stack) { return std::move(stack[0]).toTensor(); }
};
template <>
struct Unbox<bool> {
    static bool from(torch::jit::Stack& stack) { return stack[0].toBool(); }
};
template <>
struct Unbox<std::vector<at::Tensor>> {
    static std::vector<at::Tensor> from(torch::jit::Stack& stack) { return std::move(stack[0]).toTensorVector(); }
};
template <class... T>
struct Unbox<std::tuple<T...>> {
    static std::tuple<T...> from(torch::jit::Stack& stack) { return from(stack, std::index_sequence_for<T...>{}); }
    template <size_t... I>
    static std::tuple<T...> from(torch::jit::Stack& stack, std::index_sequence<I...>) {
        return {std::move(stack[I]).toTensor()...};
    }
};

inline c10::IValue boxed(const at::ITensorListRef& list) {
    c10::List<at::Tensor> tensors;
    for (const auto& tensor : list) tensors.push_back(tensor);
    return tensors;
}
inline c10::IValue boxed(at::OptionalIntArrayRef list) { return list ? c10::IValue(*list) : c10::IValue(); }
inline c10::IValue boxed(c10::string_view text) { return c10::IValue(std::string(text)); }
template <size_t N>
c10::IValue boxed(const std::array<bool, N>& flags) {
    c10::List<bool> list;
    for (bool flag : flags) list.push_back(flag);
    return list;
}
template <class T>
c10::IValue boxed(const T& value) {
    return c10::IValue(value);
}

}  // namespace detail

// A wrapper's way out: the same call, boxed.
template <class Result, class... Arguments>
C10_NOINLINE Result fall_back(OpRecord& record, const Arguments&... arguments) {
    torch::jit::Stack stack{detail::boxed(arguments)...};
    fallback(record, &stack);
    return detail::Unbox<Result>::from(stack);
}

}  // namespace dipu
