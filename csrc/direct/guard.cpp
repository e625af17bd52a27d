// For each operator of the interface a function of the same signature that calls the library's and lets no C++ exception out: the
// caller is C or Python, where an exception would end the process.
#include <cxxabi.h>
#include <diopi/functions.h>
#include <diopi/functions_ext.h>
#include <diopi/functions_lmdeploy.h>
#include <diopi/functions_mmcv.h>
#include <diopi/functions_sparse.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <typeinfo>

#include "guard.h"

namespace {

std::unique_ptr<char, void (*)(void*)> demangled(const std::type_info& type) {
    int status = 0;
    return {abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free};
}

// The text without what torch writes behind it, its list of C++ frames.
std::string_view without_frames(const char* text) {
    const std::string_view all(text ? text : "");
    return all.substr(0, all.find("\nException raised from "));
}

// While the exception is handled.
void describe(char* text, size_t size) {
    try {
        throw;
    } catch (const std::exception& error) {
        const auto name = demangled(typeid(error));
        const std::string_view what = without_frames(error.what());
        std::snprintf(text, size, "%s: %.*s", name ? name.get() : "std::exception", static_cast<int>(what.size()), what.data());
    } catch (...) {
        const std::type_info* type = abi::__cxa_current_exception_type();
        const auto name = type ? demangled(*type) : demangled(typeid(void));
        std::snprintf(text, size, "%s, which tells nothing of itself", name ? name.get() : "an unknown exception");
    }
}

template <typename Function>
struct Guarded;
template <typename... Arguments>
struct Guarded<diopiError_t (*)(diopiContextHandle_t, Arguments...)> {
    static diopiError_t call(diopiContextHandle_t ctx, Arguments... arguments) {
        using Function = diopiError_t (*)(diopiContextHandle_t, Arguments...);
        const auto function = reinterpret_cast<Function>(direct_function(ctx));
        if (!function) return diopiErrorOccurred;
        try {
            return function(ctx, arguments...);
        } catch (const abi::__forced_unwind&) {
            throw;  // the thread is being ended; this is no exception of the library
        } catch (...) {
            size_t size = 0;
            char* text = direct_thrown(ctx, &size);
            describe(text, size);
            return diopiErrorOccurred;
        }
    }
};

struct Row {
    const char* name;
    void* function;
};
const Row rows[] = {
#define OPERATOR(name) {#name, reinterpret_cast<void*>(&Guarded<decltype(&::name)>::call)},
#include "generated/guarded.inc"
#undef OPERATOR
};

}  // namespace

extern "C" void* diopi_direct_guard(const char* name) {
    for (const Row& row : rows)
        if (name && std::strcmp(row.name, name) == 0) return row.function;
    return nullptr;
}
