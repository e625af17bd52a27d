#include "pinned.h"

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <mutex>
#include <vector>

#include "deferred_errors.h"

namespace dipu {
namespace {

struct Use {
    void* event;
    int device;
};

struct Piece {
    size_t size;
    std::vector<Use> uses;
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

// Whether the copies up to the event are certainly over.
bool wait_for(const Use& use) {
    bool over = check_later(vendor()->event_synchronize(use.event), "waiting for a copy of pinned host memory");
    if (!over) over = check_later(vendor()->device_synchronize(use.device), "waiting for the device of a copy of pinned host memory");
    check_later(vendor()->event_destroy(use.event), "destroying an event");
    return over;
}

void free_pinned(void* pointer) {
    if (!pointer) return;
    std::vector<Use> uses;
    {
        std::lock_guard<std::mutex> lock(registry().mutex);
        auto found = registry().pieces.find(reinterpret_cast<uintptr_t>(pointer));
        uses = std::move(found->second.uses);
        registry().pieces.erase(found);
    }
    bool over = true;
    for (const Use& use : uses) over = wait_for(use) && over;
    // Memory that a copy may still work on is lost rather than used twice.
    if (over)
        check_later(vendor()->pinned_free(pointer), "freeing pinned host memory");
    else
        raise_later("pinned host memory is not freed, as a copy may still use it");
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
    void* handle = stream_handle(device, stream);
    void* event = nullptr;
    try {
        check(vendor()->event_create(device, &event), "creating an event");
        check(vendor()->event_record(event, handle), "recording an event");
    } catch (...) {  // nothing marks the end of the copy, so it ends before the memory can be freed
        check_later(vendor()->stream_synchronize(handle), "waiting for a copy of pinned host memory");
        if (event) check_later(vendor()->event_destroy(event), "destroying an event");
        throw;
    }
    std::lock_guard<std::mutex> lock(registry().mutex);
    if (auto* piece = registry().find(pointer))
        piece->uses.push_back({event, device});
    else
        check_later(vendor()->event_destroy(event), "destroying an event");
}

}  // namespace dipu
