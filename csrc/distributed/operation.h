// One call of a collective, or of send or receive, from the call until its results are there.
#pragma once
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace dipu {

class DeviceWork;

constexpr int kAnySource = -1;

struct Operation {
    Operation(const char* name, c10d::OpType type, std::chrono::milliseconds timeout) : name(name), type(type), timeout(timeout) {}

    const char* name;  // as torch.distributed calls it
    c10d::OpType type;
    std::chrono::milliseconds timeout;
    std::vector<at::Tensor> inputs, outputs;     // what is reduced in place is both
    std::vector<std::vector<at::Tensor>> parts;  // a list with one tensor for each rank, for each of the inputs or outputs
    c10d::ReduceOp reduction;
    int peer = 0;  // the root, or the other side
    std::string peer_name;  // for messages, as the program counts ranks
    int tag = 0;
    std::vector<int64_t> output_splits, input_splits;
    bool monitored = false, wait_for_all = false;  // monitored_barrier; whether it names all missing ranks or the first

    bool waited_for = false;  // the program asked for no handle

    // given by the group
    int device = -1;                 // of the tensors; -1: the host
    uint64_t sequence = 0;           // collectives are counted in one row, sends and receives in another
    std::optional<c10::Event> ready; // what the stream of the call had queued
    std::vector<c10::intrusive_ptr<DeviceWork>> works;
    std::atomic<bool> completed{false};
    c10d::WorkResult outcome = c10d::WorkResult::SUCCESS;
    int source = kAnySource;  // who a message from anyone came from

    bool point_to_point() const { return c10d::isP2POp(type); }
    std::string described() const;
};

}  // namespace dipu
