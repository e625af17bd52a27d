#include "sampler.h"

#include <ATen/ATen.h>

#include <limits>

namespace op_tools {
namespace {

constexpr size_t most_signatures = 200'000;

class Hash {
   public:
    void add(uint64_t value) {
        value_ ^= value + 0x9e3779b97f4a7c15ULL + (value_ << 6) + (value_ >> 2);
        value_ *= 0xff51afd7ed558ccdULL;
        value_ ^= value_ >> 33;
    }
    void add(const at::Tensor& tensor) {
        if (!tensor.defined()) return add(1);
        add(static_cast<uint64_t>(tensor.scalar_type()) << 8 | static_cast<uint64_t>(tensor.layout()));
        if (tensor.layout() != at::kStrided || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return;
        for (const auto size : tensor.sizes()) add(static_cast<uint64_t>(size));
        for (const auto stride : tensor.strides()) add(static_cast<uint64_t>(stride));
    }
    void add(const c10::IValue& value) {
        if (value.isTensor()) return add(value.toTensor());
        add(static_cast<uint64_t>(value.isNone()) << 1 | 4);
        if (value.isInt()) {
            add(static_cast<uint64_t>(value.toInt()));
        } else if (value.isBool()) {
            add(static_cast<uint64_t>(value.toBool()));
        } else if (value.isList()) {
            // A loop's own number (a step size) is not in it, and of a long list the beginning is enough.
            const auto items = value.toListRef();
            add(items.size());
            for (size_t index = 0; index < items.size() && index < 32; ++index) add(items[index]);
        }
    }
    uint64_t value() const { return value_; }

   private:
    uint64_t value_ = 0;
};

}  // namespace

bool Sampler::takes(const void* op, c10::ArrayRef<const c10::IValue> inputs) {
    Hash hash;
    hash.add(reinterpret_cast<uint64_t>(op));
    for (const auto& value : inputs) hash.add(value);
    const auto signature = hash.value();
    const auto step = step_.load(std::memory_order_relaxed);
    const auto refresh = refresh_.load(std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
    const auto next = [&](uint64_t spread) {
        return refresh > 0 ? step + static_cast<int64_t>(spread) : std::numeric_limits<int64_t>::max();
    };
    std::lock_guard<std::mutex> lock(mutex_);
    const auto known = due_.find(signature);
    bool taken;
    if (known == due_.end()) {
        if (due_.size() >= most_signatures) due_.clear();
        taken = static_cast<int64_t>(signature % static_cast<uint64_t>(shares_)) == share_;
        // The first turn is shorter, by as much as spreads the signatures evenly over the steps.
        const auto period = static_cast<uint64_t>(refresh > 0 ? refresh : 1);
        due_.emplace(signature, next(1 + (signature / static_cast<uint64_t>(shares_) + static_cast<uint64_t>(share_)) % period));
    } else {
        taken = step >= known->second;
        if (taken) known->second = next(static_cast<uint64_t>(refresh));
    }
    if (!taken && every_ > 0 && ++passed_over_ >= every_) {
        taken = true;
        passed_over_ = 0;
    }
    if (taken) taken_.fetch_add(1, std::memory_order_relaxed);
    return taken;
}

size_t Sampler::signatures() {
    std::lock_guard<std::mutex> lock(mutex_);
    return due_.size();
}

}  // namespace op_tools
