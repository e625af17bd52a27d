/* A vendor library of version 1.0: its table is as long as it was then, and nothing readable lies behind it. Its functions are those
 * of the library that FULL_VENDOR names, its options those of version 1.0. */
#include <dipu/vendor.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* dipuVendorTable as it was: what is written down here does not change any more. */
typedef struct {
    size_t size;
    uint32_t abi;
    const char* name;
    const char* description;
    const char* operator_library;
    const char* (*last_error)(void);
    int (*features)(uint64_t* features);
    int (*device_count)(int* count);
    int (*device_properties)(int device, dipuDeviceProperties* properties);
    int (*device_synchronize)(int device);
    int (*memory_allocate)(int device, size_t bytes, void** pointer);
    int (*memory_free)(int device, void* pointer);
    int (*memory_info)(int device, size_t* free_bytes, size_t* total_bytes);
    int (*pinned_allocate)(size_t bytes, void** pointer);
    int (*pinned_free)(void* pointer);
    int (*copy)(void* stream, void* destination, const void* source, size_t bytes, int kind);
    int (*fill)(void* stream, void* pointer, int byte, size_t bytes);
    int (*stream_create)(int device, int priority, void** stream);
    int (*stream_destroy)(void* stream);
    int (*stream_synchronize)(void* stream);
    int (*stream_query)(void* stream);
    int (*stream_wait_event)(void* stream, void* event);
    int (*event_create)(int device, void** event);
    int (*event_destroy)(void* event);
    int (*event_record)(void* event, void* stream);
    int (*event_synchronize)(void* event);
    int (*event_query)(void* event);
    int (*event_elapsed)(void* start, void* end, double* milliseconds);
    int (*stream_run)(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument);
    void* (*host_alias)(const void* device_pointer);
    int (*adopt)(int device, void* host_pointer, size_t bytes, void** device_pointer);
    int (*release)(int device, void* device_pointer, size_t bytes);
    int (*set_option)(const char* name, const char* value);
    int (*get_option)(const char* name, char* value, size_t size);
} tableOf10;

_Static_assert(sizeof(tableOf10) == 272, "the table of version 1.0 has 5 facts and 29 functions");

const dipuVendorTable* dipuGetVendorTable(void) {
    static tableOf10* table = NULL;
    if (table) return (const dipuVendorTable*)table;
    void* library = dlopen(getenv("FULL_VENDOR"), RTLD_NOW | RTLD_LOCAL);
    dipuGetVendorTable_t entry = library ? (dipuGetVendorTable_t)dlsym(library, DIPU_VENDOR_ENTRY) : NULL;
    if (!entry) return NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char* pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) != 0) return NULL;
    table = (tableOf10*)(pages + page - sizeof(tableOf10));
    memcpy(table, entry(), sizeof(tableOf10));
    table->size = sizeof(tableOf10);
    table->abi = 1u << 16;
    table->name = "old";
    table->operator_library = getenv("FULL_VENDOR");
    return (const dipuVendorTable*)table;
}
