/* The runtime of a chip, as one table of functions.
 *
 * A vendor library exports one symbol, `dipuGetVendorTable`. It is found through a Python entry point (group
 * `diopi.vendors`) or a path (`DIPU_DEVICE=/path/lib.so`) and loaded at run time; nothing is linked to it. The same
 * library (or the one named by `operator_library`) holds the operators: DIOPI symbols, looked up one by one, a missing
 * one is "not implemented".
 *
 * Rules
 *  - `size` comes first and is sizeof(dipuVendorTable) as the vendor was built. Entries past it read as NULL, so a table
 *    may only grow at its end while the major version stays.
 *  - Every function returns 0 for success; otherwise `last_error` tells this thread what was wrong. Out of device memory is
 *    DIPU_ERROR_MEMORY, so that the caching allocator can give memory back and try again.
 *  - No function throws. Streams and events are opaque. Work on a stream may be asynchronous; its failure is reported by
 *    the next synchronisation of that stream, once.
 *  - Valid as C11 and C++17.
 */
#ifndef DIPU_VENDOR_H_
#define DIPU_VENDOR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIPU_VENDOR_ABI_MAJOR 1u
#define DIPU_VENDOR_ABI_MINOR 0u
#define DIPU_VENDOR_ABI ((DIPU_VENDOR_ABI_MAJOR << 16) | DIPU_VENDOR_ABI_MINOR)
#define DIPU_VENDOR_ENTRY "dipuGetVendorTable"

typedef enum {
    DIPU_SUCCESS = 0,
    DIPU_ERROR = 1,
    DIPU_ERROR_MEMORY = 2,
    DIPU_ERROR_NOT_READY = 3, /* a query: work is still running */
    DIPU_ERROR_VALUE = 4      /* a wrong argument, a wrong setting */
} dipuStatus;

typedef enum { DIPU_HOST_TO_DEVICE = 0, DIPU_DEVICE_TO_HOST = 1, DIPU_DEVICE_TO_DEVICE = 2 } dipuCopyKind;

typedef enum {
    /* CPU kernels may run over device memory (host_alias, adopt, release are there). */
    DIPU_FEATURE_ALIAS = 1,
    /* Attention by the CPU's fused kernel over an alias is what this chip would compute itself. */
    DIPU_FEATURE_ALIAS_ATTENTION = 2,
    /* Work is queued: results are there after a synchronisation only. */
    DIPU_FEATURE_ASYNCHRONOUS = 4
} dipuFeature;

typedef struct {
    char name[128];
    size_t total_memory;
    int32_t compute_units;
    int32_t major, minor;
} dipuDeviceProperties;

/* A task that the stream runs in its order. Returns 0, or writes what was wrong into `error` (capacity `size`). */
typedef int (*dipuTask)(void* argument, char* error, size_t size);

typedef struct dipuVendorTable {
    size_t size;
    uint32_t abi;
    const char* name;
    const char* description;
    const char* operator_library; /* NULL: the operators are in this library */

    const char* (*last_error)(void);
    int (*features)(uint64_t* features); /* bits of dipuFeature; asked again whenever it matters */

    /* devices */
    int (*device_count)(int* count);
    int (*device_properties)(int device, dipuDeviceProperties* properties);
    int (*device_synchronize)(int device);

    /* memory */
    int (*memory_allocate)(int device, size_t bytes, void** pointer);
    int (*memory_free)(int device, void* pointer);
    int (*memory_info)(int device, size_t* free_bytes, size_t* total_bytes);
    int (*pinned_allocate)(size_t bytes, void** pointer);
    int (*pinned_free)(void* pointer);
    int (*copy)(void* stream, void* destination, const void* source, size_t bytes, int kind);
    int (*fill)(void* stream, void* pointer, int byte, size_t bytes);

    /* streams: handle NULL is never valid; stream 0 of a device is created like any other */
    int (*stream_create)(int device, int priority, void** stream);
    int (*stream_destroy)(void* stream);
    int (*stream_synchronize)(void* stream);
    int (*stream_query)(void* stream); /* 0: idle, DIPU_ERROR_NOT_READY: busy */
    int (*stream_wait_event)(void* stream, void* event);

    /* events */
    int (*event_create)(int device, void** event);
    int (*event_destroy)(void* event);
    int (*event_record)(void* event, void* stream);
    int (*event_synchronize)(void* event);
    int (*event_query)(void* event);
    int (*event_elapsed)(void* start, void* end, double* milliseconds);

    /* ---- optional from here: NULL where the vendor has nothing of the kind ---- */

    /* Runs a host function in the stream's order; `name` appears in error messages. `destroy` is always called once. */
    int (*stream_run)(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument);

    /* DIPU_FEATURE_ALIAS: the address under which host code may touch this device memory; memory a host kernel made
     * becomes device memory (counted as such, DIPU_ERROR_MEMORY if there is not enough) and is given back again. */
    void* (*host_alias)(const void* device_pointer);
    int (*adopt)(int device, void* host_pointer, size_t bytes, void** device_pointer);
    int (*release)(int device, void* device_pointer, size_t bytes);

    /* Settings of the vendor's own by name, while the program runs. */
    int (*set_option)(const char* name, const char* value);
    int (*get_option)(const char* name, char* value, size_t size);
} dipuVendorTable;

typedef const dipuVendorTable* (*dipuGetVendorTable_t)(void);

#ifdef __cplusplus
}
#endif
#endif /* DIPU_VENDOR_H_ */
