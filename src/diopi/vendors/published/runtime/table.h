// The last part of a runtime: the table of the functions above it, and the end of everything that the build left out.
// PUBLISHED_NAME is given by the build.
#include <stdexcept>

extern "C" {

// Every symbol that the published sources use and that no compiled file defines (`diopi.published`) is this one. The functions that
// use them are not exported, so this is never reached through the interface.
void diopi_published_left_out() { throw std::runtime_error("this kernel was left out when the library was built"); }

__attribute__((visibility("default"))) const dipuVendorTable* dipuGetVendorTable(void) {
    static const dipuVendorTable table = [] {
        dipuVendorTable made = {};
        made.size = sizeof(made);
        made.abi = DIPU_VENDOR_ABI;
        made.name = PUBLISHED_NAME;
        made.description = "DIOPI's published operators over PyTorch";
#define ENTRY(name) made.name = name
        ENTRY(last_error);
        ENTRY(features);
        ENTRY(device_count);
        ENTRY(device_properties);
        ENTRY(device_synchronize);
        ENTRY(memory_allocate);
        ENTRY(memory_free);
        ENTRY(memory_info);
        ENTRY(pinned_allocate);
        ENTRY(pinned_free);
        ENTRY(copy);
        ENTRY(fill);
        ENTRY(stream_create);
        ENTRY(stream_destroy);
        ENTRY(stream_synchronize);
        ENTRY(stream_query);
        ENTRY(stream_wait_event);
        ENTRY(event_create);
        ENTRY(event_destroy);
        ENTRY(event_record);
        ENTRY(event_synchronize);
        ENTRY(event_query);
        ENTRY(event_elapsed);
#undef ENTRY
        return made;
    }();
    return &table;
}
}
