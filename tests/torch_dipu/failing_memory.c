/* The simulated chip behind a table whose entries fail on request: set_option("fail", "entry:count") or getenv("FAIL_LIBRARY"). */
#include <dipu/vendor.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dipuVendorTable* chip;
static dipuVendorTable table;
static char failing[64];
static int left, hits, failed_here;

/* Whether this call fails: the first `left` calls of the entry do. */
static int fails(const char* entry) {
    failed_here = 0;
    if (left == 0 || strcmp(entry, failing) != 0) return 0;
    --left, ++hits, failed_here = 1;
    return 1;
}
static const char* last_error(void) { return failed_here ? "the chip is broken" : chip->last_error(); }

#define ENTRY(name, parameters, arguments) \
    static int name parameters { return fails(#name) ? DIPU_ERROR : chip->name arguments; }
ENTRY(device_synchronize, (int device), (device))
ENTRY(memory_allocate, (int device, size_t bytes, void** pointer), (device, bytes, pointer))
ENTRY(memory_free, (int device, void* pointer), (device, pointer))
ENTRY(memory_info, (int device, size_t* free_bytes, size_t* total), (device, free_bytes, total))
ENTRY(pinned_allocate, (size_t bytes, void** pointer), (bytes, pointer))
ENTRY(pinned_free, (void* pointer), (pointer))
ENTRY(event_create, (int device, void** event), (device, event))
ENTRY(event_destroy, (void* event), (event))
ENTRY(event_record, (void* event, void* stream), (event, stream))
ENTRY(event_synchronize, (void* event), (event))
ENTRY(event_query, (void* event), (event))
ENTRY(stream_create, (int device, int priority, void** stream), (device, priority, stream))
ENTRY(adopt, (int device, void* host, size_t bytes, void** pointer), (device, host, bytes, pointer))
ENTRY(release, (int device, void* pointer, size_t bytes), (device, pointer, bytes))

static int stream_run(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument) {
    if (!fails("stream_run")) return chip->stream_run(stream, name, task, destroy, argument);
    destroy(argument);
    return DIPU_ERROR;
}

static int set_option(const char* name, const char* value) {
    if (strcmp(name, "fail") != 0) return chip->set_option(name, value);
    const char* colon = strchr(value, ':');
    snprintf(failing, sizeof(failing), "%.*s", (int)(colon - value), value);
    left = atoi(colon + 1), hits = 0;
    return DIPU_SUCCESS;
}
static int get_option(const char* name, char* value, size_t size) {
    if (strcmp(name, "hits") != 0) return chip->get_option(name, value, size);
    snprintf(value, size, "%d", hits);
    return DIPU_SUCCESS;
}

const dipuVendorTable* dipuGetVendorTable(void) {
    if (chip) return &table;
    void* library = dlopen(getenv("CHIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    chip = ((dipuGetVendorTable_t)dlsym(library, "dipuGetVendorTable"))();
    memcpy(&table, chip, chip->size < sizeof(table) ? chip->size : sizeof(table));
    table.operator_library = getenv("CHIP_LIBRARY");
    table.last_error = last_error;
#define USE(name) table.name = name
    USE(device_synchronize), USE(memory_allocate), USE(memory_free), USE(memory_info), USE(pinned_allocate), USE(pinned_free);
    USE(event_create), USE(event_destroy), USE(event_record), USE(event_synchronize), USE(event_query), USE(stream_create);
    USE(adopt), USE(release), USE(stream_run), USE(set_option), USE(get_option);
    return &table;
}
