// Kernels of our own in front of those that are there: what comes to an operator with a dispatch key goes through them first.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace op_tools {

// Stands in front of the kernel that an operator had for a key when it was put there.
class KernelInFront : public c10::OperatorKernel {
   public:
    KernelInFront(const c10::OperatorHandle& handle, c10::DispatchKey key);

   protected:
    void run_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;

   private:
    c10::DispatchKey key_;
    std::optional<c10::SafeKernelFunction> kernel_;
};

using OperatorNames = std::vector<std::pair<std::string, std::string>>;  // aten::add, Tensor

// Those of one purpose, for as long as they stand there. Called with the GIL held.
class KernelsInFront {
   public:
    using Place = std::function<c10::KernelFunction(const c10::OperatorHandle&, c10::DispatchKey)>;
    using Wants = std::function<bool(const c10::OperatorHandle&, c10::DispatchKey)>;

    KernelsInFront(Wants wants, Place make) : wants_(std::move(wants)), make_(std::move(make)) {}

    void put(const OperatorNames& names, const std::vector<c10::DispatchKey>& keys);
    void clear();
    // Somebody has put a kernel in front of ours, or has taken away the one behind it.
    void put_again(const std::string& name, const std::string& overload);

   private:
    using Spot = std::tuple<std::string, std::string, c10::DispatchKey>;

    struct Standing {
        c10::RegistrationHandleRAII registration;
        c10::KernelFunction kernel;
    };

    void put_one(const Spot& spot);
    void take_away(std::map<Spot, Standing>::iterator standing, size_t kept);

    Wants wants_;
    Place make_;
    std::map<Spot, Standing> standing_;
    // Those that were taken away last: a thread may have been on its way into one.
    std::deque<c10::KernelFunction> gone_;
};

}  // namespace op_tools
