#include "operators.h"

#include <pthread.h>

#include <array>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace op_tools {

// ---- locks ----

namespace {

// Never destroyed, since threads may outlive the module.
struct Locks {
    std::mutex operators, samplers;
};

Locks& locks() {
    static auto* made = [] {
        pthread_atfork([] { locks().operators.lock(), locks().samplers.lock(); },
                       [] { locks().samplers.unlock(), locks().operators.unlock(); },
                       [] { locks().samplers.unlock(), locks().operators.unlock(); });
        return new Locks();
    }();
    return *made;
}

}  // namespace

std::mutex& lock_of_operators() { return locks().operators; }
std::mutex& lock_of_samplers() { return locks().samplers; }

// ---- all operators ----

namespace {

// Counts the operators that have gone: what is known of operators by where their names lie holds until then.
std::atomic<uint64_t> generation{1};

struct Registrations final : c10::OpRegistrationListener {
    explicit Registrations(void (*registered)()) : registered_(registered) {}
    void onOperatorRegistered(const c10::OperatorHandle&) override { registered_(); }
    void onOperatorDeregistered(const c10::OperatorHandle&) override { generation.fetch_add(1); }

   private:
    void (*registered_)();
};

using Operators = std::unordered_map<c10::OperatorName, std::vector<std::unique_ptr<Operator>>>;

// An operator lives for ever, as a thread may be looking at it; one that is defined again as it was is the same.
Operator* operator_named(const c10::OperatorName& name) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) return nullptr;
    static auto* all = new Operators();
    std::lock_guard<std::mutex> lock(lock_of_operators());
    auto& same_name = (*all)[name];
    for (const auto& op : same_name)
        if (op->schema == handle->schema()) return op.get();
    return same_name.emplace_back(std::make_unique<Operator>(*handle)).get();
}

// Those that a thread has met, by where their names stand: each has its own.
struct Met {
    const char *name = nullptr, *overload = nullptr;
    Operator* op = nullptr;
};
constexpr size_t places = 1024, tries = 8;
struct Recent {
    uint64_t generation = 0;
    std::array<Met, places + tries> met;
};
thread_local Recent recent;

template <typename FullName>
Operator* find_operator(const char* name, const char* overload, const FullName& find_full_name) {
    const auto now = generation.load(std::memory_order_acquire);
    if (recent.generation != now) {
        recent.met.fill({});
        recent.generation = now;
    }
    Met* const first = &recent.met[(reinterpret_cast<uintptr_t>(name) >> 4) % places];
    Met* free = first;
    for (Met* met = first; met < first + tries; ++met) {
        if (met->name == name && met->overload == overload) return met->op;
        if (met->name == nullptr) {
            free = met;
            break;
        }
    }
    const std::optional<c10::OperatorName> full_name = find_full_name();
    if (!full_name) return nullptr;
    Operator* const op = operator_named(*full_name);
    if (op != nullptr) *free = {name, overload, op};
    return op;
}

}  // namespace

Operator* find_operator(const at::RecordFunction& fn) {
    return find_operator(fn.name(), fn.overload_name(), [&] { return fn.operator_name(); });
}

Operator* find_operator(const c10::OperatorHandle& handle) {
    const auto& schema = handle.schema();
    return find_operator(schema.name().c_str(), schema.overload_name().c_str(), [&] { return handle.operator_name(); });
}

void follow_registrations(void (*registered)()) {
    static auto* following = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Registrations>(registered)));
    (void)following;
}

}  // namespace op_tools
