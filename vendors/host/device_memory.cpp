#include "device_memory.h"

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <stdexcept>

namespace dipu_vendor {
namespace {

std::atomic<size_t> used[kMaxDevices];

std::string variable(const char* name, const char* fallback) {
    const char* text = std::getenv(name);
    return text && *text ? text : fallback;
}

}  // namespace

size_t parse_size(const std::string& text) {
    size_t digits = 0;
    while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
    std::string unit = text.substr(digits);
    for (auto& letter : unit) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    if (unit.size() > 1 && unit.back() == 'B') unit.pop_back();
    if (unit.size() > 1 && unit.back() == 'I') unit.pop_back();
    const int shift = unit.empty() || unit == "B" ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : unit == "T" ? 40 : -1;
    if (digits == 0 || digits > 15 || shift < 0)
        throw std::invalid_argument("'" + text + "' is not a size; expected a number of bytes or one with K, M, G or T, such as 512M or 8G");
    return static_cast<size_t>(std::stoull(text.substr(0, digits))) << shift;
}

int device_count() {
    static const int count = [] {
        const std::string text = variable("DIPU_HOST_DEVICES", "2");
        char* end = nullptr;
        const long value = std::strtol(text.c_str(), &end, 10);
        if (*end != 0 || value < 1 || value > kMaxDevices)
            throw std::invalid_argument("DIPU_HOST_DEVICES='" + text + "': expected a number from 1 to " + std::to_string(kMaxDevices));
        return static_cast<int>(value);
    }();
    return count;
}

size_t device_capacity() {
    static const size_t capacity = [] {
        try {
            return parse_size(variable("DIPU_HOST_MEMORY", "8G"));
        } catch (const std::invalid_argument& error) {
            throw std::invalid_argument(std::string("DIPU_HOST_MEMORY: ") + error.what());
        }
    }();
    return capacity;
}

size_t device_used(int device) { return used[device].load(std::memory_order_relaxed); }

bool charge(int device, size_t bytes) {
    if (used[device].fetch_add(bytes, std::memory_order_relaxed) + bytes <= device_capacity()) return true;
    used[device].fetch_sub(bytes, std::memory_order_relaxed);
    return false;
}

void discharge(int device, size_t bytes) { used[device].fetch_sub(bytes, std::memory_order_relaxed); }

}  // namespace dipu_vendor
