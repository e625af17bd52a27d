// The operators that calls were seen of, and what was decided about each.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "python_call.h"
#include "sampler.h"

namespace op_tools {

enum class Decision : uint8_t { unwanted, wanted };

struct Operator {
    explicit Operator(const c10::OperatorHandle& found) : handle(found), schema(found.schema()) {}

    const c10::OperatorHandle handle;
    const c10::FunctionSchema schema;  // as it was: a library may take an operator away and define another one of that name

    std::atomic<uint64_t> decided_at{0};
    std::atomic<Decision> decision{Decision::unwanted};
    std::atomic<Sampler*> sampler{nullptr};  // what decides about single calls
    std::atomic<bool> by_own_name{true};     // some tool takes calls that are part of nothing

    // With the GIL held.
    std::unique_ptr<Signature> signature;
    py::object subscription;
    bool ties = false;  // whether some tool is told which nodes of autograd a call has made
};

// The operator of a call; null where it is none (a range of the program, an autograd function). Takes no lock that Python has.
Operator* find_operator(const at::RecordFunction& fn);
Operator* find_operator(const c10::OperatorHandle& handle);

// Be told of operators that come and go.
void follow_registrations(void (*registered)());

// Locks that are free in a forked child, whatever the parent's other threads were doing.
std::mutex& lock_of_operators();
std::mutex& lock_of_samplers();

}  // namespace op_tools
