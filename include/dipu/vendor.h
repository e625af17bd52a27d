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
#define DIPU_VENDOR_ABI_MINOR 1u /* 1.1: the entries from module_load on */
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
    DIPU_FEATURE_ASYNCHRONOUS = 4,
    /* torch's scaled_dot_product_attention is to run by diopiFlashAttention and diopiFlashAttentionBackward where their arguments can say it. */
    DIPU_FEATURE_FLASH_ATTENTION = 8,
    /* Random numbers come of a counter: a generator is a seed and an offset (diopiGeneratorGetSeedAndOffset). */
    DIPU_FEATURE_COUNTER_RANDOM = 16,
    /* Means and deviations that a normalisation saves for its gradient are float32 where the input is a half dtype. */
    DIPU_FEATURE_WIDE_STATISTICS = 32
} dipuFeature;

typedef struct {
    char name[128];
    size_t total_memory;
    int32_t compute_units;
    int32_t major, minor;
} dipuDeviceProperties;

/* A task that the stream runs in its order. Returns 0, or writes what was wrong into `error` (capacity `size`). */
typedef int (*dipuTask)(void* argument, char* error, size_t size);

typedef struct {
    uint32_t x, y, z;
} dipuDim3;

/* One launch of a kernel. `size` is sizeof(dipuKernelLaunch) as the caller was built: fields past it are not there.
 * Arguments are given as in CUDA: each pointer is to a value, which is copied before the launch returns. A chip that knows
 * the sizes of its kernels' parameters needs no `argument_sizes`; callers always give them. */
typedef struct {
    size_t size;
    void* stream;
    const char* name; /* of the kernel, for messages and profilers; may be NULL */
    dipuDim3 grid, block;
    size_t shared_memory;
    uint32_t argument_count;
    void* const* arguments;
    const size_t* argument_sizes;
} dipuKernelLaunch;

typedef enum {
    DIPU_EVENT_BLOCKING = 1,       /* event_synchronize gives the core away while it waits */
    DIPU_EVENT_DISABLE_TIMING = 2, /* never given to event_elapsed */
    DIPU_EVENT_INTERPROCESS = 4    /* DIPU_ERROR_VALUE where events cannot be shared */
} dipuEventFlag;

/* Names a group of ranks that communicate; one rank makes it, the others are sent its bytes. */
typedef struct {
    char bytes[128];
} dipuCommunicatorId;

typedef enum { DIPU_SUM = 0, DIPU_PRODUCT = 1, DIPU_MINIMUM = 2, DIPU_MAXIMUM = 3, DIPU_AVERAGE = 4 } dipuReduction;

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
    int (*get_option)(const char* name, char* value, size_t size); /* "options": the names of all, with commas */

    /* ---- from here on: version 1.1 ---- */

    /* Kernels that others compiled. A module is made of a file, or of `bytes` bytes at `image` (then `path` is NULL): whatever
     * the chip's compiler writes. A queued launch outlives the unloading of its module. */
    int (*module_load)(int device, const char* path, const void* image, size_t bytes, void** module);
    int (*module_unload)(void* module);
    int (*module_function)(void* module, const char* name, void** function);
    int (*kernel_launch)(void* function, const dipuKernelLaunch* launch);

    /* Priorities that stream_create takes: the least urgent (0 or more) and the most urgent, a lower number. NULL: 0 alone. */
    int (*stream_priority_range)(int device, int* least, int* greatest);

    /* An event with dipuEventFlag bits. NULL: event_create serves all, and flags are only hints. */
    int (*event_create_with_flags)(int device, uint32_t flags, void** event);

    /* Whose kernels run over host_alias, as the device type codes of DLPack: 1 the CPU (also if NULL), 2 CUDA, ...
     * torch_dipu's fallback uses the CPU's so far, and copies where an alias is for others. */
    int (*alias_device_type)(int32_t* type);

    /* Collective communication, in the order of the stream; NULL: the framework goes through the host. `count` is in elements
     * of the dtype, a diopiDtype_t. reduce_scatter gets `count` elements for each rank, all_gather gives as many. Between group_begin and
     * group_end calls are gathered and start together. abort gives up what is under way and frees; destroy waits, and frees. */
    int (*communicator_unique_id)(dipuCommunicatorId* id);
    int (*communicator_init)(int device, int ranks, int rank, const dipuCommunicatorId* id, void** communicator);
    int (*communicator_destroy)(void* communicator);
    int (*communicator_abort)(void* communicator);
    int (*communicator_query)(void* communicator); /* an error if a rank was lost; DIPU_ERROR_NOT_READY while it is being made */
    int (*communicator_group_begin)(void);
    int (*communicator_group_end)(void);
    int (*communicator_all_reduce)(void* communicator, const void* in, void* out, size_t count, int32_t dtype, int reduction,
                                   void* stream);
    int (*communicator_all_gather)(void* communicator, const void* in, void* out, size_t count, int32_t dtype, void* stream);
    int (*communicator_reduce_scatter)(void* communicator, const void* in, void* out, size_t count, int32_t dtype, int reduction,
                                       void* stream);
    int (*communicator_broadcast)(void* communicator, const void* in, void* out, size_t count, int32_t dtype, int root, void* stream);
    int (*communicator_send)(void* communicator, const void* in, size_t count, int32_t dtype, int peer, void* stream);
    int (*communicator_receive)(void* communicator, void* out, size_t count, int32_t dtype, int peer, void* stream);
} dipuVendorTable;

typedef const dipuVendorTable* (*dipuGetVendorTable_t)(void);

#ifdef __cplusplus
}
#endif
#endif /* DIPU_VENDOR_H_ */
