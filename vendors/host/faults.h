// Faults on request: an entry of the vendor table fails at its n-th call, or the work that it queues does.
//
//   fault=event_create:3:DIPU_ERROR          the third call from now on
//   fault=memory_allocate:1+:DIPU_ERROR_MEMORY   all calls from the first on
//   fault=copy:2:queued                      the call succeeds; its work fails when the stream gets to it
//
// Several with commas. Read again they are followed by how often each has happened: `event_create:3:DIPU_ERROR=1`.
#pragma once
#include <string>

namespace dipu_vendor {

#define DIPU_HOST_ENTRIES(X)                                                                                                         \
    X(last_error) X(features) X(device_count) X(device_properties) X(device_synchronize) X(memory_allocate) X(memory_free)            \
    X(memory_info) X(pinned_allocate) X(pinned_free) X(copy) X(fill) X(stream_create) X(stream_destroy) X(stream_synchronize)         \
    X(stream_query) X(stream_wait_event) X(event_create) X(event_destroy) X(event_record) X(event_synchronize) X(event_query)         \
    X(event_elapsed) X(stream_run) X(host_alias) X(adopt) X(release) X(set_option) X(get_option) X(module_load) X(module_unload)      \
    X(module_function) X(kernel_launch) X(stream_priority_range) X(event_create_with_flags) X(alias_device_type)

enum class Entry : int {
#define DIPU_HOST_ENTRY(name) name,
    DIPU_HOST_ENTRIES(DIPU_HOST_ENTRY)
#undef DIPU_HOST_ENTRY
        count
};

// Whether any is asked for. Costs one load where none is.
bool faults_set();
// Counts a call of the entry; the status that it has to fail with, DIPU_SUCCESS if none.
int injected(Entry entry);
// Whether the work that this thread is about to queue has to fail: said once.
bool work_is_to_fail();
constexpr const char* kInjectedWork = "injected fault in queued work";

// Throws std::invalid_argument with what was expected. "" asks for none.
void set_faults(const std::string& text);
std::string faults();
std::string fault_entries();

}  // namespace dipu_vendor
