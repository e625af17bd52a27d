// A compiled graph that is ready to run: its library, what its operators are, memory that calls share.
#pragma once
#include <ATen/ATen.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aten_call.h"
#include "services.h"

namespace dicp {

/// A tensor of the caller. -1: a size or stride that the graph does not fix.
struct InputSlot {
    int place;  // among the caller's arguments
    at::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
    bool written;
};

/// Memory that the caller gets: allocated before the graph runs.
struct AllocationSlot {
    int value, rank;
    at::ScalarType dtype;
};

struct OutputSlot {
    enum class Kind { whole, view, size, none } kind;
    int value, rank;
    at::ScalarType dtype;
};

/// A weight that products may pack: the value it is part of.
struct WeightSlot {
    int value;
};

struct PackedWeight;
struct DeviceLibrary;

/// What one call in flight needs. Kept for the next call, so that nothing is allocated.
struct Workspace {
    at::Tensor arena;
    std::vector<char*> pointers;
    std::vector<int64_t> sizes, dims;
    std::vector<at::Tensor> tensors;               // of values that are no part of the arena
    std::vector<std::vector<at::Tensor>> cached;   // of each call: arguments in the arena as they were last time
};

struct Plan;

/// The run that generated code hands back to the services. A segment that runs on a device's queue has no plan and no workspace.
struct Frame {
    Plan* plan;
    Workspace* workspace;
    std::exception_ptr error;
};

/// What a run takes and gives, without Python.
struct Argument {
    at::Tensor tensor;
    int64_t number = 0;
};
struct Result {
    OutputSlot::Kind kind;
    at::Tensor tensor;
    int64_t number = 0;
};

struct Plan {
    explicit Plan(const std::string& library);
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    /// Checks what was added and prepares what does not change.
    void finish();
    std::vector<Result> run(std::vector<Argument>& arguments);
    /// Queues a segment of the run on the device.
    void launch(Frame& frame, int64_t segment);

    std::string path;
    c10::Device device{c10::kCPU};
    int arguments = 0, values = 0;
    std::vector<InputSlot> inputs;
    std::vector<int> sizes;  // places of the numbers among the caller's arguments
    std::vector<at::Tensor> constants;
    std::vector<AllocationSlot> allocations;
    std::vector<OutputSlot> outputs;
    std::vector<AtenCall> calls;
    std::vector<WeightSlot> weights;

    std::vector<std::vector<std::shared_ptr<const PackedWeight>>> packed;  // of each weight what products read of it, once they have
    std::mutex packing;

private:
    std::unique_ptr<Workspace> take();
    void give(std::unique_ptr<Workspace> workspace);
    void bind_inputs(Workspace& workspace, std::vector<Argument>& given) const;
    void allocate(Workspace& workspace) const;
    std::vector<Result> collect(const Workspace& workspace) const;

    void* handle_ = nullptr;
    PlanFunction plan_ = nullptr;
    RunFunction run_ = nullptr;
    SegmentFunction segment_ = nullptr;
    size_t dims_ = 1;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Workspace>> free_;
    std::unique_ptr<DeviceLibrary> on_device_;
};

/// A tensor over part of the value's memory, of which it holds the storage.
at::Tensor tensor_at(const Workspace& workspace, int value, char* pointer, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace dicp
