// DIPU_MEM_CHECK: which device memory is not freed at the end, what is handed out or freed twice, and from where.
#pragma once
#include <atomic>
#include <string>

#include "allocator.h"

namespace dipu {

DIPU_API extern std::atomic<bool> memory_check_on;

// Called without a pool's lock; with backtraces the interpreter's lock is taken.
void check_allocation(Block& block);
void check_free(Block& block);

// One of the variables DIPU_MEM_CHECK... gets a value. False for another name; throws c10::ValueError if the value is wrong.
DIPU_API bool set_memory_check(const std::string& name, const std::string& value);
// Before the interpreter ends: what is held now keeps the names of its call sites.
DIPU_API void name_call_sites();
// What is not freed, as it is printed at the end.
DIPU_API std::string memory_check_report();

}  // namespace dipu
