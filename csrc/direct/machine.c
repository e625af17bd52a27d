/* Memory and the stream: a vendor's table, or the host's own memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records.h"

static _Thread_local char problem[1024];

const char* diopi_direct_problem(void) { return problem; }

int direct_fail(const char* text) {
    snprintf(problem, sizeof(problem), "%s", text);
    return 1;
}

static int vendor_fail(const diopiMachine* machine, const char* doing) {
    const char* reason = machine->vendor.last_error();
    snprintf(problem, sizeof(problem), "%s failed: %s", doing, reason && *reason ? reason : "the vendor gives no reason");
    return 1;
}

/* The mandatory entries are function pointers, one after the other. */
static bool complete(const dipuVendorTable* vendor) {
    const char* first = (const char*)vendor + offsetof(dipuVendorTable, last_error);
    const char* last = (const char*)vendor + offsetof(dipuVendorTable, event_elapsed);
    for (; first <= last; first += sizeof(void (*)(void)))
        if (!*(void* const*)first) return false;
    return true;
}

static int check_vendor(const dipuVendorTable* vendor, int device) {
    char text[256];
    if (vendor->size <= offsetof(dipuVendorTable, event_elapsed)) {
        snprintf(text, sizeof(text), "its vendor table is %zu bytes long and ends before its mandatory entries; rebuild it against "
                                     "include/dipu/vendor.h", vendor->size);
        return direct_fail(text);
    }
    if (vendor->abi >> 16 != DIPU_VENDOR_ABI_MAJOR) {
        snprintf(text, sizeof(text), "it speaks version %u.%u of the vendor interface, this loader speaks %u.%u", vendor->abi >> 16,
                 vendor->abi & 0xffffu, DIPU_VENDOR_ABI_MAJOR, DIPU_VENDOR_ABI_MINOR);
        return direct_fail(text);
    }
    if (!complete(vendor)) return direct_fail("its vendor table lacks a mandatory entry (include/dipu/vendor.h)");
    int count = 0;
    if (vendor->device_count(&count) != DIPU_SUCCESS) {
        const char* reason = vendor->last_error();
        snprintf(text, sizeof(text), "its devices cannot be counted: %s", reason ? reason : "");
        return direct_fail(text);
    }
    if (device < 0 || device >= count) {
        snprintf(text, sizeof(text), "device %d was asked for, but there are %d", device, count);
        return direct_fail(text);
    }
    return 0;
}

diopiMachine* diopi_direct_machine_create(const dipuVendorTable* vendor, int device) {
    if (vendor && check_vendor(vendor, device)) return NULL;
    diopiMachine* machine = calloc(1, sizeof(*machine));
    if (!machine) return direct_fail("out of host memory"), NULL;
    machine->device = device;
    machine->fill = -1;
    if (!vendor) return machine;
    machine->has_vendor = true;
    memcpy(&machine->vendor, vendor, vendor->size < sizeof(*vendor) ? vendor->size : sizeof(*vendor));
    if (machine->vendor.stream_create(device, 0, &machine->stream) != DIPU_SUCCESS) {
        vendor_fail(machine, "making a stream");
        free(machine);
        return NULL;
    }
    return machine;
}

void diopi_direct_watch_required(diopiMachine* machine, int byte) { machine->fill = byte; }

/* Where nothing can be returned. */
static void log_failure(const diopiMachine* machine, int status, const char* doing) {
    if (status == DIPU_SUCCESS) return;
    vendor_fail(machine, doing);
    fprintf(stderr, "diopi: %s\n", problem);
}

void diopi_direct_machine_destroy(diopiMachine* machine) {
    if (!machine) return;
    if (machine->has_vendor) {
        log_failure(machine, machine->vendor.stream_synchronize(machine->stream), "waiting for a stream");
        log_failure(machine, machine->vendor.stream_destroy(machine->stream), "destroying a stream");
    }
    free(machine);
}

int diopi_direct_allocate(diopiMachine* machine, size_t bytes, void** pointer) {
    if (!machine || !pointer) return direct_fail("no machine, or nowhere to put the pointer");
    *pointer = NULL;
    if (machine->has_vendor)
        return machine->vendor.memory_allocate(machine->device, bytes, pointer) ? vendor_fail(machine, "allocating device memory") : 0;
    *pointer = aligned_alloc(64, (bytes / 64 + 1) * 64);
    return *pointer ? 0 : direct_fail("out of host memory");
}

int diopi_direct_free(diopiMachine* machine, void* pointer) {
    if (!machine) return direct_fail("no machine");
    if (machine->has_vendor)
        return machine->vendor.memory_free(machine->device, pointer) ? vendor_fail(machine, "freeing device memory") : 0;
    free(pointer);
    return 0;
}

static int copied(diopiMachine* machine, void* to, const void* from, size_t bytes, int kind, const char* doing) {
    if (!machine) return direct_fail("no machine");
    if (bytes == 0) return 0;
    if (!to || !from) return direct_fail("a copy from or to NULL");
    if (!machine->has_vendor) {
        memmove(to, from, bytes);
        return 0;
    }
    if (machine->vendor.copy(machine->stream, to, from, bytes, kind)) return vendor_fail(machine, doing);
    return machine->vendor.stream_synchronize(machine->stream) ? vendor_fail(machine, doing) : 0;
}

int diopi_direct_write(diopiMachine* machine, void* device_pointer, const void* host_pointer, size_t bytes) {
    return copied(machine, device_pointer, host_pointer, bytes, DIPU_HOST_TO_DEVICE, "copying to the device");
}

int diopi_direct_read(diopiMachine* machine, void* host_pointer, const void* device_pointer, size_t bytes) {
    return copied(machine, host_pointer, device_pointer, bytes, DIPU_DEVICE_TO_HOST, "copying from the device");
}

int diopi_direct_fill(diopiMachine* machine, void* device_pointer, int byte, size_t bytes) {
    if (!machine) return direct_fail("no machine");
    if (bytes == 0) return 0;
    if (!device_pointer) return direct_fail("filling at NULL");
    if (machine->has_vendor)
        return machine->vendor.fill(machine->stream, device_pointer, byte, bytes) ? vendor_fail(machine, "filling device memory") : 0;
    memset(device_pointer, byte, bytes);
    return 0;
}

int diopi_direct_synchronize(diopiMachine* machine) {
    if (!machine) return direct_fail("no machine");
    if (!machine->has_vendor) return 0;
    return machine->vendor.stream_synchronize(machine->stream) ? vendor_fail(machine, "synchronising") : 0;
}
