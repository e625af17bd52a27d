// What went wrong, for the thread that asks.
#pragma once
#include <exception>
#include <string>

namespace dipu_vendor {

// An exception's message without torch's C++ stack.
std::string what(const std::exception& error);
// "IndexError: " and the like: torch_dipu raises an error of that kind. "" for the others.
const char* kind_of(const std::exception& error);
void set_error(const std::string& message);
const char* last_error();

}  // namespace dipu_vendor
