#include "pinned.h"

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <mutex>
#include <vector>

#include "deferred_errors.h"

namespace dipu {
namespace {

struct Piece {
    size_t size;
    std::vector<void*> events;
};

// Live pieces by address; a view into one is found by the piece that starts before it.
struct Registry {
    std::mutex mutex;
    std::map<uintptr_t, Piece> pieces;

    Piece* find(const void* pointer) {
        const auto address = reinterpret_cast<uintptr_t>(pointer);
        auto after = pieces.upper_bound(address);
        if (after == pieces.begin()) return nullptr;
        auto piece = std::prev(after);
        return address < piece->first + piece->second.size ? &piece->second : nullptr;
    }
};
Registry& registry() {
    static auto* instance = new Registry;
    return *instance;
}

void free_pinned(void* pointer) {
    if (!pointer) return;
    std::vector<void*> events;
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        auto found = registry().pieces.find(reinterpret_cast<uintptr_t>(pointer));
        events = std::move(found->second.events);
        registry().pieces.erase(found);
    }
    bool over = true;
    for (void* event : events) {
        over = check_later(vendor()->event_synchronize(event), "waiting for an event") && over;
        check_later(vendor()->event_destroy(event), "destroying an event");
    }
    // Where the vendor cannot say that a copy is over, the memory stays: a copy into memory of somebody else would be worse.
    if (over) check_later(vendor()->pinned_free(pointer), "giving pinned host memory back");
}

class PinnedAllocator final : public at::HostAllocator {
   public:
    c10::DataPtr allocate(size_t bytes) override {
        void* pointer = nullptr;
        if (bytes > 0) {
            check(vendor()->pinned_allocate(bytes, &pointer), "allocating pinned host memory");
            std::lock_guard<std::mutex> lock(registry().mutex);
            registry().pieces[reinterpret_cast<uintptr_t>(pointer)] = {bytes, {}};
        }
        return {pointer, pointer, &free_pinned, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
    void copy_data(void* destination, const void* source, size_t bytes) const override { default_copy_data(destination, source, bytes); }
    bool record_event(void* pointer, void*, c10::Stream stream) override {
        record_pinned(pointer, stream.device_index(), stream.id());
        return true;
    }
    void empty_cache() override {}  // nothing is kept
    at::HostStats get_stats() override { return {}; }
    void reset_accumulated_stats() override {}
    void reset_peak_stats() override {}
};

PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;
    return *allocator;
}

const bool registered = [] {
    at::setHostAllocator(at::kPrivateUse1, &instance());
    return true;
}();

}  // namespace

c10::Allocator* pinned_allocator() { return &instance(); }

bool is_pinned(const void* pointer) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    return registry().find(pointer) != nullptr;
}

void record_pinned(const void* pointer, int device, int64_t stream) {
    if (!vendor().has(DIPU_FEATURE_ASYNCHRONOUS)) return;
    void* event = nullptr;
    check(vendor()->event_create(device, &event), "creating an event");
    try {
        check(vendor()->event_record(event, stream_handle(device, stream)), "recording an event");
    } catch (const c10::Error&) {
        check_later(vendor()->event_destroy(event), "destroying an event");
        throw;
    }
    std::lock_guard<std::mutex> lock(registry().mutex);
    if (auto* piece = registry().find(pointer))
        piece->events.push_back(event);
    else
        check_later(vendor()->event_destroy(event), "destroying an event");
}

}  // namespace dipu
