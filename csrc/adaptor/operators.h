// The operators that can be adapted: their rules, the library's own functions, what conversions cost.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "adaptor.h"
#include "tensors.h"

namespace adaptor {

struct Cost {
    std::atomic<uint64_t> calls{0}, composed{0}, conversions{0}, on_host{0}, bytes{0}, nanoseconds{0}, call_nanoseconds{0}, errors{0};
};

struct Operator {
    std::vector<Rule> rules;  // one for each argument, or empty
    bool may_be_composed = false;
    std::atomic<void*> vendor{nullptr};
    Cost cost;
};

// A function of an operator's signature that converts (shims.cpp), and the names of its arguments with blanks between them.
struct Shim {
    const char* name;
    void* function;
    const char* arguments;
    int count;
};
extern const Shim shims[];
extern const int shim_count;

// What a library may lack and still have the parts of.
struct Composite {
    const char* name;
    void* function;
    std::vector<const char*> parts;
};
const Composite* composite_named(const char* name);

Operator& operator_at(int number);
// The number of an operator; -1 if the adaptor does not know it.
int number_of(const char* name);
// The library's own function, nullptr if it has none.
void* vendor_function(const char* name);
const dipuVendorTable* vendor_table();

// The text for diopi_adaptor_last_error.
void set_error(const std::string& text);
// The answer to an exception, called while it is handled: nothing may be thrown through the C interface.
diopiError_t thrown(const char* name) noexcept;

}  // namespace adaptor
