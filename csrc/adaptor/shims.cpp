// For each operator of the interface a function of the same signature that converts what its rules name (call.h).
#include <diopi/functions.h>
#include <diopi/functions_ext.h>

#include "call.h"

namespace adaptor {
namespace {

enum Number : int {
#define OPERATOR(name, arguments) number_of_##name,
#include "generated/operators.inc"
#undef OPERATOR
    number_of_operators
};

template <int number, typename Function>
struct Adapted;
template <int number, typename... Arguments>
struct Adapted<number, diopiError_t (*)(diopiContextHandle_t, Arguments...)> {
    using Function = diopiError_t (*)(diopiContextHandle_t, Arguments...);
    static constexpr int count = 1 + sizeof...(Arguments);

    static diopiError_t call(diopiContextHandle_t ctx, Arguments... arguments) try {
        Call call(number, ctx);
        call.replace_arguments(arguments...);
        if (!call.ready()) return diopiErrorOccurred;
        return call.finish(call.vendor<Function>()(ctx, arguments...));
    } catch (...) {
        return thrown(shims[number].name);
    }
};

template <int number, typename Function>
Shim shim(const char* name, const char* arguments) {
    using Converting = Adapted<number, Function>;
    return {name, reinterpret_cast<void*>(&Converting::call), arguments, Converting::count};
}

}  // namespace

const Shim shims[] = {
#define OPERATOR(name, arguments) shim<number_of_##name, decltype(&::name)>(#name, arguments),
#include "generated/operators.inc"
#undef OPERATOR
};
const int shim_count = number_of_operators;

}  // namespace adaptor
