#include "wrapper.h"

#include <cstring>
#include <optional>
#include <string>

namespace dipu {

void* Operator::look_up() {
    void* found = vendor().symbol(symbol_);
    function_.store(found, std::memory_order_release);
    return found;
}

namespace {

// The interface has one code for all errors. A vendor that knows better writes the kind of error into its text:
// "diopiIndexSelect: IndexError: index 7 is out of range".
[[noreturn]] void raise(const OpRecord& record, diopiError_t status, const std::string& message) {
    const std::string text = c10::str("dipu: ", record.name, " failed (error ", static_cast<int>(status), "): ");
    const auto without = [&](const char* kind) -> std::optional<std::string> {
        const auto at = message.find(std::string(": ") + kind + ": ");
        if (at == std::string::npos) return std::nullopt;
        return text + message.substr(0, at + 2) + message.substr(at + 4 + std::strlen(kind));
    };
    if (const auto found = without("IndexError")) TORCH_CHECK_INDEX(false, *found);
    if (const auto found = without("ValueError")) TORCH_CHECK_VALUE(false, *found);
    if (const auto found = without("TypeError")) TORCH_CHECK_TYPE(false, *found);
    if (const auto found = without("NotImplementedError")) TORCH_CHECK_NOT_IMPLEMENTED(false, *found);
    TORCH_CHECK(false, text, message);
}

// What an exception says of itself: the text, without torch's list of C++ frames.
std::string told_by(const std::exception& error) {
    if (const auto* own = dynamic_cast<const c10::Error*>(&error)) return own->what_without_backtrace();
    return error.what();
}

}  // namespace

void raise_thrown(const Operator& op, const OpRecord& record, const Context& context) {
    // a function that the vendor called back raised first, and the vendor threw because of it
    if (context.failure) std::rethrow_exception(context.failure);
    const auto text = [&](const std::exception& error) { return c10::str("dipu: ", record.name, " failed: ", op.symbol(), " threw a C++ exception: ", told_by(error)); };
    try {
        throw;
    } catch (const c10::OutOfMemoryError& error) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, text(error));
    } catch (const c10::IndexError& error) {
        TORCH_CHECK_INDEX(false, text(error));
    } catch (const c10::ValueError& error) {
        TORCH_CHECK_VALUE(false, text(error));
    } catch (const c10::TypeError& error) {
        TORCH_CHECK_TYPE(false, text(error));
    } catch (const c10::NotImplementedError& error) {
        TORCH_CHECK_NOT_IMPLEMENTED(false, text(error));
    } catch (const std::bad_alloc&) {
        TORCH_CHECK(false, "dipu: ", record.name, " failed: ", op.symbol(), " ran out of host memory");
    } catch (const std::exception& error) {
        TORCH_CHECK(false, text(error));
    } catch (...) {
        TORCH_CHECK(false, "dipu: ", record.name, " failed: ", op.symbol(), " threw a C++ exception that tells nothing of itself");
    }
    std::abort();  // not reached: every handler raises
}

bool succeeded(diopiError_t status, const Operator& op, const OpRecord& record) {
    switch (status) {
        case diopiSuccess: return true;
        case diopiNoImplement:
        case diopiDtypeNotSupported:
        case diopiForceFallbackToCPU:
        case diopi5DNotSupported: return false;
        default: break;
    }
    const std::string message = operator_error();
    raise(record, status, message.empty() ? op.symbol() : message);
}

}  // namespace dipu
