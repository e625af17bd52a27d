#include "kernels_in_front.h"

#include <c10/util/Exception.h>

namespace op_tools {
namespace {

class NoWarnings final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
};

}  // namespace

KernelInFront::KernelInFront(const c10::OperatorHandle& handle, c10::DispatchKey key) : key_(key) {
    if (handle.hasComputedKernelForDispatchKey(key)) kernel_ = handle.getComputedKernelForDispatchKey(key);
}

void KernelInFront::run_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    TORCH_CHECK_NOT_IMPLEMENTED(kernel_, "Could not run '", handle.operator_name(), "' with arguments from the '", key_,
                                "' backend: the device has no kernel for it.");
    kernel_->callBoxed(handle, keys, stack);
}

void KernelsInFront::put_one(const Spot& spot) {
    const auto& [name, overload, key] = spot;
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto handle = dispatcher.findSchema({name, overload});
    if (!handle || !wants_(*handle, key)) return;
    auto kernel = make_(*handle, key);  // which asks for the kernel that is there
    auto registration = dispatcher.registerImpl({name, overload}, key, kernel, std::nullopt, nullptr, "op_tools");
    standing_.emplace(spot, Standing{std::move(registration), std::move(kernel)});
}

void KernelsInFront::take_away(std::map<Spot, Standing>::iterator standing, size_t kept) {
    gone_.push_back(standing->second.kernel);
    while (gone_.size() > kept) gone_.pop_front();
    standing_.erase(standing);
}

void KernelsInFront::clear() {
    for (const size_t all = standing_.size(); !standing_.empty();) take_away(standing_.begin(), all);
}

void KernelsInFront::put(const OperatorNames& names, const std::vector<c10::DispatchKey>& keys) {
    clear();
    NoWarnings nobody;  // that a kernel is replaced is what is wanted
    c10::WarningUtils::WarningHandlerGuard guard(&nobody);
    for (const auto key : keys)
        for (const auto& [name, overload] : names) put_one({name, overload, key});
}

void KernelsInFront::put_again(const std::string& name, const std::string& overload) {
    NoWarnings nobody;
    c10::WarningUtils::WarningHandlerGuard guard(&nobody);
    std::vector<Spot> spots;
    for (const auto& [spot, handle] : standing_)
        if (std::get<0>(spot) == name && std::get<1>(spot) == overload) spots.push_back(spot);
    for (const auto& spot : spots) take_away(standing_.find(spot), standing_.size());
    for (const auto& spot : spots) put_one(spot);
}

}  // namespace op_tools
