#include "sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>

#include "operators.h"

namespace op_tools {
namespace {

constexpr size_t most_signatures = 200'000;
// Calls of a program without an optimizer that count as a step, at least.
constexpr int64_t fewest_calls = 1024;

uint64_t mixed(uint64_t value) {
    value ^= value >> 33;
    value *= 0xff51afd7ed558ccdULL;
    value ^= value >> 33;
    value *= 0xc4ceb9fe1a85ec53ULL;
    return value ^ value >> 33;
}

class Hash {
   public:
    void add(uint64_t value) {
        value_ ^= value + 0x9e3779b97f4a7c15ULL + (value_ << 6) + (value_ >> 2);
        value_ *= 0xff51afd7ed558ccdULL;
        value_ ^= value_ >> 33;
    }
    void add(std::string_view text) { add(std::hash<std::string_view>()(text)); }
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

thread_local uint64_t last_asked = 0;

}  // namespace

Sampler::Sampler(int64_t every, int64_t refresh, int64_t share, int64_t shares) : every_(every), refresh_(refresh) {
    set_share(share, shares);
    passed_over_ = every_ * share_ / shares_;
}

bool Sampler::takes(std::string_view name, std::string_view overload, c10::ArrayRef<const c10::IValue> inputs) {
    Hash hash;
    hash.add(name);
    hash.add(overload);
    for (const auto& value : inputs) hash.add(value);
    return takes(hash.value());
}

bool Sampler::takes(uint64_t signature) {
    last_asked = signature;
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    ++calls_;
    const auto most = usual_calls_ > 0 ? 2 * usual_calls_ : 4 * static_cast<int64_t>(known_.size());
    if (++calls_in_step_ > std::max(fewest_calls, most)) next_step();
    const auto [found, is_new] = known_.try_emplace(signature, Known{step_, step_});
    auto& known = found->second;
    bool taken = false;
    if (is_new) {
        taken = signature % static_cast<uint64_t>(shares_) == static_cast<uint64_t>(share_) && open();
        if (!taken) wait(signature, known, 0.0F);
    } else {
        count(known);
        taken = is_due(signature, known) && open();
    }
    if (!taken && every_ > 0 && ++passed_over_ >= every_ && open()) {
        taken = true;
        passed_over_ = 0;
    }
    if (taken) {
        ++taken_;
        ++known.looks;
        known.looked = step_;
        wait(signature, known, 0.5F);
    }
    if (is_new && known_.size() > most_signatures) forget();
    return taken;
}

uint64_t Sampler::asked() { return last_asked; }

bool Sampler::open() const {
    const auto until = closed_until_.load(std::memory_order_relaxed);
    if (until == 0) return true;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() >= until;
}

// Once it is due, any of its calls in a step may be the one.
bool Sampler::is_due(uint64_t signature, Known& known) {
    if (refresh_ <= 0) return false;
    if (static_cast<double>(step_ - known.looked) < static_cast<double>(known.wait) * static_cast<double>(refresh_)) return false;
    if (known.passes < 0) known.passes = static_cast<int32_t>(mixed(signature + known.looks) % known.usual);
    if (known.passes == 0) return true;
    --known.passes;
    return false;
}

void Sampler::count(Known& known) {
    if (known.seen == step_) {
        ++known.calls;
        return;
    }
    known.usual = known.calls + 1;
    known.calls = 0;
    known.seen = step_;
    if (known.round == round_) return;
    known.round = round_;
    in_this_round_ += 1.0 / static_cast<double>(known.rounds);
}

// From the last look `at_least` of a round and at most one more; evenly spread over that, each rank elsewhere.
void Sampler::wait(uint64_t signature, Known& known, float at_least) {
    const auto own = static_cast<double>(mixed(signature ^ mixed(known.looks)) >> 11) * 0x1p-53;
    const auto apart = own + static_cast<double>(share_) / static_cast<double>(shares_);
    const auto part = static_cast<float>(apart >= 1 ? apart - 1 : apart);
    known.wait = (at_least + part) * known.rounds;
    known.passes = -1;
}

void Sampler::next_step() {
    ++step_;
    calls_in_step_ = 0;
    if (refresh_ <= 0 || step_ - round_began_ < refresh_) return;
    ++round_;
    round_began_ = step_;
    in_last_round_ = in_this_round_;
    in_this_round_ = 0;
}

// What was not seen for two rounds, or else everything: shapes that never come again must not fill the memory.
void Sampler::forget() {
    const auto old = step_ - 2 * std::max<int64_t>(refresh_, 1);
    for (auto known = known_.begin(); known != known_.end();) known = known->second.seen < old ? known_.erase(known) : std::next(known);
    if (known_.size() > most_signatures / 2) known_.clear();
}

void Sampler::stepped() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    // One in which no calls were seen says nothing: the tool may have rested.
    if (calls_in_step_ > 0) usual_calls_ = std::max(calls_in_step_, usual_calls_ - usual_calls_ / 8);
    next_step();
}

void Sampler::set_share(int64_t share, int64_t shares) {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    shares_ = std::max<int64_t>(shares, 1);
    share_ = std::clamp<int64_t>(share, 0, shares_ - 1);
}

void Sampler::set_refresh(int64_t steps) {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    refresh_ = steps;
}

void Sampler::set_rounds(uint64_t signature, double rounds) {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    const auto found = known_.find(signature);
    if (found == known_.end()) return;
    auto& known = found->second;
    known.wait *= static_cast<float>(rounds) / known.rounds;
    known.rounds = static_cast<float>(rounds);
}

int64_t Sampler::step() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    return step_;
}

int64_t Sampler::refresh() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    return refresh_;
}

int64_t Sampler::calls() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    return calls_;
}

int64_t Sampler::taken() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    return taken_;
}

size_t Sampler::signatures() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    return known_.size();
}

double Sampler::taken_in_a_round() {
    std::lock_guard<std::mutex> lock(lock_of_samplers());
    return std::max(in_this_round_, in_last_round_);
}

void bind_sampler(pybind11::module_& module) {
    namespace py = pybind11;
    py::class_<Sampler>(module, "Sampler", "Decides which calls are looked at, by signature.")
        .def(py::init<int64_t, int64_t, int64_t, int64_t>(), py::arg("every"), py::arg("refresh"), py::arg("share"), py::arg("shares"))
        .def("takes", py::overload_cast<uint64_t>(&Sampler::takes), "Whether a call with this signature is looked at.")
        .def_static("asked", &Sampler::asked, "The signature that this thread asked for last.")
        .def("stepped", &Sampler::stepped, "An optimizer has made a step.")
        .def("set_share", &Sampler::set_share, py::arg("share"), py::arg("shares"))
        .def("set_rounds", &Sampler::set_rounds, "Look at a signature once in so many rounds.")
        .def_property("refresh", &Sampler::refresh, &Sampler::set_refresh, "Steps after which a signature is taken again, about.")
        .def_property("closed_until", &Sampler::closed_until, &Sampler::set_closed_until, "Before this time nothing is taken (ns, monotonic).")
        .def_property_readonly("step", &Sampler::step)
        .def_property_readonly("calls", &Sampler::calls)
        .def_property_readonly("taken", &Sampler::taken)
        .def_property_readonly("signatures", &Sampler::signatures)
        .def_property_readonly("taken_in_a_round", &Sampler::taken_in_a_round);
}

}  // namespace op_tools
