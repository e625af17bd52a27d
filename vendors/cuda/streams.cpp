// Entries of the vendor table: streams, events, and what runs in a stream's order.
#include <c10/util/Exception.h>

#include <memory>
#include <set>

#include "chip.h"
#include "entries.h"

namespace dipu_vendor {
namespace {

Stream& as_stream(void* stream) { return *static_cast<Stream*>(stream); }
cudaStream_t raw(void* stream) { return as_stream(stream).raw; }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

// All streams, for the synchronisation of a device.
struct Streams {
    std::mutex mutex;
    std::set<Stream*> all;
};
Streams& streams() {
    static auto* instance = new Streams;  // never destroyed: threads may outlive static destruction
    return *instance;
}

// The status of a wait, or the failure of a host function that was waited for.
int waited(int status, const std::string& failure) {
    if (status != DIPU_SUCCESS || failure.empty()) return status;
    set_error(failure);
    return DIPU_ERROR;
}

// A host function with what it needs.
struct HostCall {
    Stream* stream;
    std::string name;
    dipuTask task;
    std::shared_ptr<void> argument;
};

void CUDART_CB run_host_call(void* given) {
    const std::unique_ptr<HostCall> call(static_cast<HostCall*>(given));
    char error[1024] = "";
    if (call->task(call->argument.get(), error, sizeof(error)) == 0) return;
    std::lock_guard<std::mutex> lock(call->stream->mutex);
    if (call->stream->failure.empty()) call->stream->failure = call->name + ": " + error;
}

}  // namespace

Stream& stream_of(diopiContextHandle_t ctx) {
    diopiStreamHandle_t stream = nullptr;
    TORCH_CHECK(ctx && diopiGetStream(ctx, &stream) == diopiSuccess && stream, "the context has no stream");
    return as_stream(stream);
}

int synchronize_device(int device) {
    return guarded([&] {
        const int status = on_device(device, [] { return cudaDeviceSynchronize(); });
        std::string failure;
        std::lock_guard<std::mutex> lock(streams().mutex);
        for (Stream* stream : streams().all)
            if (stream->device == device && failure.empty()) failure = stream->take_failure();
        return waited(status, failure);
    });
}

// The direction is in the addresses.
int copy(void* stream, void* destination, const void* source, size_t bytes, int) {
    if (bytes == 0) return DIPU_SUCCESS;
    return on_device(as_stream(stream).device, [&] { return cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, raw(stream)); });
}

int fill(void* stream, void* pointer, int byte, size_t bytes) {
    return on_device(as_stream(stream).device, [&] { return cudaMemsetAsync(pointer, byte, bytes, raw(stream)); });
}

int priority_range(int device, int* least, int* greatest) {
    return on_device(device, [&] { return cudaDeviceGetStreamPriorityRange(least, greatest); });
}

int create_stream(int device, int priority, void** stream) {
    return guarded([&] {
        share_memory_pool();
        int least = 0, greatest = 0;
        if (const int status = priority_range(device, &least, &greatest)) return status;
        if (priority > least || priority < greatest) {
            set_error("there is no stream priority " + std::to_string(priority) + "; they go from " + std::to_string(least) + " to " +
                      std::to_string(greatest));
            return static_cast<int>(DIPU_ERROR_VALUE);
        }
        cudaStream_t created = nullptr;
        const int status = on_device(device, [&] { return cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, priority); });
        if (status != DIPU_SUCCESS) return status;
        auto* made = new Stream(created, device);
        std::lock_guard<std::mutex> lock(streams().mutex);
        streams().all.insert(made);
        *stream = made;
        return static_cast<int>(DIPU_SUCCESS);
    });
}

int destroy_stream(void* stream) {
    return guarded([&] {
        const std::unique_ptr<Stream> old(static_cast<Stream*>(stream));
        {
            std::lock_guard<std::mutex> lock(streams().mutex);
            streams().all.erase(old.get());
        }
        // host functions that are still queued write to the stream
        const int waited_for = status_of(cudaStreamSynchronize(old->raw));
        const int destroyed = status_of(cudaStreamDestroy(old->raw));
        return waited_for ? waited_for : destroyed;
    });
}

int synchronize_stream(void* stream) {
    return guarded([&] {
        const int status = status_of(cudaStreamSynchronize(raw(stream)));
        return waited(status, as_stream(stream).take_failure());
    });
}

int query_stream(void* stream) { return answer_of(cudaStreamQuery(raw(stream))); }

int wait_event(void* stream, void* event) { return status_of(cudaStreamWaitEvent(raw(stream), as_event(event), 0)); }

int create_event(int device, void** event) { return create_event_with_flags(device, 0, event); }

int create_event_with_flags(int device, uint32_t flags, void** event) {
    unsigned own = cudaEventDefault;
    if (flags & DIPU_EVENT_BLOCKING) own |= cudaEventBlockingSync;
    if (flags & (DIPU_EVENT_DISABLE_TIMING | DIPU_EVENT_INTERPROCESS)) own |= cudaEventDisableTiming;
    if (flags & DIPU_EVENT_INTERPROCESS) own |= cudaEventInterprocess;
    return on_device(device, [&] {
        cudaEvent_t created = nullptr;
        const cudaError_t error = cudaEventCreateWithFlags(&created, own);
        *event = created;
        return error;
    });
}

int destroy_event(void* event) { return status_of(cudaEventDestroy(as_event(event))); }

int record_event(void* event, void* stream) {
    return on_device(as_stream(stream).device, [&] { return cudaEventRecord(as_event(event), raw(stream)); });
}

int synchronize_event(void* event) { return status_of(cudaEventSynchronize(as_event(event))); }

int query_event(void* event) { return answer_of(cudaEventQuery(as_event(event))); }

int elapsed(void* start, void* end, double* milliseconds) {
    float measured = 0;
    const int status = status_of(cudaEventElapsedTime(&measured, as_event(start), as_event(end)));
    *milliseconds = measured;
    return status;
}

int run_on_stream(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument) {
    return guarded([&] {
        std::shared_ptr<void> owned(argument, destroy);
        auto call = std::make_unique<HostCall>(HostCall{&as_stream(stream), name ? name : "", task, std::move(owned)});
        const int status = on_device(as_stream(stream).device, [&] { return cudaLaunchHostFunc(raw(stream), run_host_call, call.get()); });
        if (status == DIPU_SUCCESS) (void)call.release();  // its own from now on
        return status;
    });
}

}  // namespace dipu_vendor
