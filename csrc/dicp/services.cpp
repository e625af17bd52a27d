#include "services.h"

#include <ATen/Parallel.h>

#include <mutex>

#include "matmul.h"
#include "run.h"
#include "../parallel/parallel_for.h"

namespace dicp {
namespace {

Frame& frame_of(void* frame) { return *static_cast<Frame*>(frame); }

/// Nothing is thrown through generated code: 0, or the error is kept for the end of the run.
template <class Work>
int guarded(void* frame, Work&& work) {
    try {
        work(frame_of(frame));
        return 0;
    } catch (...) {
        keep_error(frame_of(frame), std::current_exception());
        return 1;
    }
}

int call(void* frame, int64_t index, const int64_t* dims) {
    return guarded(frame, [&](Frame& run) {
        TORCH_CHECK(run.workspace, "an operator is called inside a segment");
        run.plan->calls.at(index).run(run, run.workspace->cached[index], dims);
    });
}

void parallel(void*, Task task, void* context, int64_t count, int64_t grain) {
    ditorch::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { task(context, begin, end); });
}

int matmul(void* frame, const Matmul* product) {
    return guarded(frame, [&](Frame& run) { multiply(*product, run.plan && product->weight >= 0 ? packed_weight(*run.plan, *product) : nullptr); });
}

int launch(void* frame, int64_t segment) {
    return guarded(frame, [&](Frame& run) { run.plan->launch(run, segment); });
}

void fail(void* frame, const char* message) {
    try {
        TORCH_CHECK_INDEX(false, message);
    } catch (...) {
        keep_error(frame_of(frame), std::current_exception());
    }
}

}  // namespace

void keep_error(Frame& frame, std::exception_ptr error) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!frame.error) frame.error = std::move(error);
}

const Services* services(bool queues) {
    static const Services called{sizeof(Services), call, parallel, matmul, nullptr, fail};
    static const Services queued{sizeof(Services), call, parallel, matmul, launch, fail};
    return queues ? &queued : &called;
}

const Services* segment_services() { return services(false); }

}  // namespace dicp
