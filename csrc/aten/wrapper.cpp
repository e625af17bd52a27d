#include "wrapper.h"

namespace dipu {

void* Operator::look_up() {
    void* found = vendor().symbol(symbol_);
    function_.store(found, std::memory_order_release);
    return found;
}

bool settle(diopiError_t status, const Operator& op, const OpRecord& record) {
    switch (status) {
        case diopiSuccess: return true;
        case diopiNoImplement:
        case diopiDtypeNotSupported:
        case diopiForceFallbackToCPU:
        case diopi5DNotSupported: return false;
        default: break;
    }
    using LastError = const char* (*)();
    static auto last_error = reinterpret_cast<LastError>(vendor().symbol("diopiGetLastErrorString"));
    const char* message = last_error ? last_error() : nullptr;
    TORCH_CHECK(false, "dipu: ", record.name, " failed (error ", static_cast<int>(status), "): ",
                message && *message ? message : op.symbol());
}

}  // namespace dipu
