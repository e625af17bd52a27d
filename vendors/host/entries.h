// Entries of the vendor table that are not in runtime.cpp, and what entries have in common.
#pragma once
#include <dipu/vendor.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "errors.h"
#include "faults.h"
#include "queue.h"

namespace dipu_vendor {

// Every entry of the table: no exception leaves, the message stays with the thread.
template <class Body>
int guarded(Body&& body) {
    try {
        return body();
    } catch (const std::exception& error) {
        set_error(what(error));
        return DIPU_ERROR;
    }
}

// The body runs in the stream's order: now, or on the stream's thread, which reports what it throws under `name`.
template <class Body>
void run_in_order(Stream* stream, const char* name, Body&& body) {
    if (faults_set() && work_is_to_fail()) {
        const auto fail = [] { throw std::runtime_error(kInjectedWork); };
        return asynchronous() ? stream->push(name, fail) : fail();
    }
    if (asynchronous())
        stream->push(name, std::forward<Body>(body));
    else
        body();
}

// streams.cpp
int synchronize_device(int device);
int copy(void* stream, void* destination, const void* source, size_t bytes, int kind);
int fill(void* stream, void* pointer, int byte, size_t bytes);
int create_stream(int device, int priority, void** stream);
int destroy_stream(void* stream);
int synchronize_stream(void* stream);
int query_stream(void* stream);
int priority_range(int device, int* least, int* greatest);
int wait_event(void* stream, void* event);
int create_event(int device, void** event);
int create_event_with_flags(int device, uint32_t flags, void** event);
int destroy_event(void* event);
int record_event(void* event, void* stream);
int synchronize_event(void* event);
int query_event(void* event);
int elapsed(void* start, void* end, double* milliseconds);
int run_on_stream(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument);

// modules.cpp
int load_module(int device, const char* path, const void* image, size_t bytes, void** module);
int unload_module(void* module);
int function_of_module(void* module, const char* name, void** function);
int launch_kernel(void* function, const dipuKernelLaunch* launch);

}  // namespace dipu_vendor
