// An operator of ATen inside a compiled graph: everything that does not change is prepared once, the call is boxed.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "convolution.h"

namespace dicp {

struct Frame;

/// What is filled in at each call: number `argument` of the schema, or an element of that list. Without a dtype it is an int.
struct ArgumentSlot {
    int argument, position, value, rank;
    std::optional<at::ScalarType> dtype;
};

/// What a result must look like: number `result` of the schema, or an element of that list.
struct ResultSlot {
    int result, position, value, rank;
    at::ScalarType dtype;
};

/// The weight of a convolution, if it is a constant.
struct OncePacked {
    std::once_flag once;
    std::shared_ptr<const Panels> panels;
};

class AtenCall {
public:
    AtenCall(const std::string& name, const std::string& overload);

    const c10::FunctionSchema& schema() const { return op_.schema(); }
    std::string name() const;

    /// Calls the operator for the graph that runs in `frame`.
    void run(Frame& frame, std::vector<at::Tensor>& cached, const int64_t* dims) const;

    std::vector<c10::IValue> constants;  // one for each argument; None where slots fill in, lists with some of their elements
    std::vector<ArgumentSlot> slots;
    std::vector<ResultSlot> results;

    /// Called once all of the above is there.
    void finish();

private:
    void set_result(Frame& frame, const ResultSlot& slot, at::Tensor result, const std::vector<at::Tensor>& arguments, const int64_t* dims) const;

    /// Whether own kernels served the call.
    bool convolved(Frame& frame, const int64_t* dims) const;

    c10::OperatorHandle op_;
    std::optional<ConvolutionSettings> convolution_;
    std::shared_ptr<OncePacked> packed_;
    bool aliases_ = false;  // the schema says that results are arguments, or views of them
};

}  // namespace dicp
