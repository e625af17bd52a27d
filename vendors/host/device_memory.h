// Device memory that the host cannot touch: an address of the simulated chip is a host address with bits set that make it
// non-canonical, so a host read faults at once, and a kernel strips them for nothing. The device's number is in there too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace dipu_vendor {

constexpr uint64_t kTag = 1ull << 62;
constexpr int kDeviceShift = 56;
constexpr uint64_t kAddressMask = (1ull << kDeviceShift) - 1;

inline void* tag(void* host, int device) {
    return host ? reinterpret_cast<void*>(reinterpret_cast<uint64_t>(host) | kTag | (static_cast<uint64_t>(device) << kDeviceShift))
                : nullptr;
}
inline void* untag(const void* pointer) { return reinterpret_cast<void*>(reinterpret_cast<uint64_t>(pointer) & kAddressMask); }

constexpr int kMaxDevices = 16;

int device_count();
// Bytes of one device's memory; the same for all.
size_t device_capacity();
size_t device_used(int device);

// Counts `bytes` as used on the device, or says no.
bool charge(int device, size_t bytes);
void discharge(int device, size_t bytes);

// "512M", "8G", "1048576" -> bytes; throws std::invalid_argument with what was expected.
size_t parse_size(const std::string& text);

}  // namespace dipu_vendor
