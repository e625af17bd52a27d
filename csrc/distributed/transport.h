// What carries the bytes between the ranks of a group: the host's network, or a communicator of the vendor.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>

#include "operation.h"

namespace dipu {

class Transport {
 public:
    virtual ~Transport() = default;

    // Raises if it cannot carry the operation out, in the call of the program.
    virtual void check(const Operation& operation) const = 0;
    // Operations with the same lane run one after the other, in the order of their calls; others run beside them.
    virtual std::string lane(const Operation& operation) const = 0;
    // Called on a thread of the lane, with the communication stream as the current one; what the caller's stream had queued is done.
    // Returns when the results are there, raises why they are not.
    virtual void run(Operation& operation) = 0;
    // Gives up what is under way as far as that can be interrupted; nothing is run afterwards.
    virtual void abort() {}
};

// Over a backend of torch for host tensors.
std::unique_ptr<Transport> host_transport(c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace dipu
