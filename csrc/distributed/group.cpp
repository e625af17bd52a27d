#include "group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "communication_stream.h"

namespace dipu {
namespace {

std::string what(const std::exception& error) {
    if (const auto* failure = dynamic_cast<const c10::Error*>(&error)) return failure->what_without_backtrace();
    return error.what();
}

std::exception_ptr distributed_error(const std::string& text) {
    return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "dicl: " + text));
}

bool timed_out(const std::string& why) {
    return why.find("imed out") != std::string::npos || why.find("imeout") != std::string::npos;
}

}  // namespace

CommunicationGroup::CommunicationGroup(std::unique_ptr<Transport> transport, GroupIdentity identity)
    : transport_(std::move(transport)), identity_(std::move(identity)) {}

std::shared_ptr<CommunicationGroup> CommunicationGroup::make(std::unique_ptr<Transport> transport, GroupIdentity identity,
                                                             c10::intrusive_ptr<c10d::Store> store) {
    const int rank = identity.rank;
    const auto ranks = identity.global_ranks;
    std::shared_ptr<CommunicationGroup> group(new CommunicationGroup(std::move(transport), std::move(identity)));
    group->membership_ = std::make_unique<Membership>(std::move(store), rank, ranks, [weak = group->weak_from_this()](const std::string& reason) {
        if (auto living = weak.lock()) living->fail(reason);
    });
    return group;
}

uint64_t CommunicationGroup::sequence() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return collectives_;
}

bool CommunicationGroup::failed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return !failure_.empty();
}

void CommunicationGroup::refuse_after_failure() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty())
        C10_THROW_ERROR(DistBackendError, "dicl: the process group '" + identity_.name + "' cannot be used any more; call "
                                          "torch.distributed.destroy_process_group() and end, or make a new group. It failed before: " + failure_);
}

void CommunicationGroup::call(Operation& operation) {
    refuse_after_failure();
    transport_->check(operation);
    const bool collective = !operation.point_to_point();
    {
        std::lock_guard<std::mutex> lock(mutex_);
        operation.sequence = collective ? ++collectives_ : ++messages_;
    }
    membership_->called(collective, operation.sequence, operation.name, operation.described());
    if (operation.device < 0 || !vendor().has(DIPU_FEATURE_ASYNCHRONOUS)) return;
    operation.ready.emplace(c10::kPrivateUse1);
    operation.ready->record(c10::Stream(c10::Stream::UNSAFE, dipu_device(operation.device), current_stream(operation.device)));
}

void CommunicationGroup::start(std::shared_ptr<Operation> operation) {
    const std::string name = transport_->lane(*operation);
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_.insert(operation);
    membership_->set_busy(true);
    auto& lane = lanes_[name];
    if (!lane) lane = std::make_shared<Lane>();
    lane->push([self = shared_from_this(), operation = std::move(operation)] { self->run(*operation); });
}

void CommunicationGroup::run(Operation& operation) {
    if (operation.completed) return;  // the group failed meanwhile
    const auto begin = std::chrono::steady_clock::now();
    bool communicates = false;
    try {
        const OnCommunicationStream scope(operation.device);
        const at::NoGradGuard no_grad;
        const at::AutoDispatchBelowAutograd below;
        const at::RecordFunctionGuard unseen(false);  // copies of ours are no calls of the program
        for (const auto& work : operation.works) work->started();
        if (operation.ready) operation.ready->synchronize();
        communicates = true;
        transport_->run(operation);
    } catch (const std::exception& error) {
        if (operation.completed) return;
        const std::string why = what(error);
        operation.outcome = timed_out(why) ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
        std::string reason = communicates ? explain(operation, why, begin) : operation.described() + " failed on its device: " + why;
        reason = membership_->write_down(reason);
        {
            std::lock_guard<std::mutex> lock(mutex_);  // who sees this error finds the group failed
            if (failure_.empty()) failure_ = reason;
        }
        complete(operation, distributed_error(reason));
        fail(reason);
        return;
    }
    if (!operation.point_to_point()) membership_->finished(operation.sequence);
    complete(operation, nullptr);
}

std::string CommunicationGroup::explain(Operation& operation, const std::string& why, std::chrono::steady_clock::time_point begin) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f s", took.count());
    const std::string found = membership_->roll_call(!operation.point_to_point(), operation.sequence, operation.name);
    return operation.described() + " of the process group '" + identity_.name + "' failed on " + membership_->rank_name(identity_.rank) + " after " +
           seconds + " (timeout " + std::to_string(operation.timeout.count()) + " ms). " + found + "\n  The network says: " + why;
}

void CommunicationGroup::complete(Operation& operation, std::exception_ptr error) {
    if (operation.completed.exchange(true)) return;
    if (!error) {  // else the transport may still use them
        operation.inputs.clear();
        operation.outputs.clear();
        operation.parts.clear();
    }
    for (const auto& work : operation.works) work->finished(operation, error);
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto found = under_way_.begin(); found != under_way_.end(); ++found)
        if (found->get() == &operation) {
            under_way_.erase(found);  // the caller holds it
            break;
        }
    if (under_way_.empty()) membership_->set_busy(false);
    completed_.notify_all();
}

void CommunicationGroup::fail(const std::string& reason) {
    std::vector<std::shared_ptr<Operation>> pending;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (failure_.empty()) failure_ = reason;
        pending.assign(under_way_.begin(), under_way_.end());
    }
    for (const auto& operation : pending) {
        operation->outcome = c10d::WorkResult::COMM_ERROR;
        complete(*operation, distributed_error(operation->described() + " was given up, because the process group '" + identity_.name +
                                             "' failed: " + reason));
    }
}

void CommunicationGroup::abort(const std::string& reason) {
    fail(reason);
    transport_->abort();
}

bool CommunicationGroup::drain(std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    return completed_.wait_for(lock, limit, [&] { return under_way_.empty(); });
}

}  // namespace dipu
