#include "backend.h"

#include <algorithm>

namespace dipu {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;

HostBackendFactory& host_backend_factory() {
    static auto* factory = new HostBackendFactory;
    return *factory;
}

// Where the tensors of an operation lie: an index, or -1 for the host.
int device_of(const Operation& op) {
    std::optional<c10::Device> device;
    const auto look = [&](const Tensors& tensors) {
        for (const auto& tensor : tensors) {
            TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "dicl: ", op.name, " takes dense tensors, not ", tensor.layout(),
                              "; call to_dense() first");
            const auto where = tensor.device();
            TORCH_CHECK_VALUE(where.is_cpu() || where.is_privateuseone(), "dicl: ", op.name, " takes tensors of dipu or the CPU, not of ", where);
            TORCH_CHECK_VALUE(!device || *device == where, "dicl: ", op.name, " takes tensors of one device, not of ", *device, " and ", where);
            device = where;
        }
    };
    look(op.inputs);
    look(op.outputs);
    for (const auto& list : op.parts) look(list);
    return device && device->is_privateuseone() ? device->index() : -1;
}

void check_one(const char* name, size_t tensors) {
    TORCH_CHECK_VALUE(tensors == 1, "dicl: ", name, " takes one tensor for each process, not ", tensors);
}

void check_list(const char* name, const Tensors& list, int size) {
    TORCH_CHECK_VALUE(static_cast<int>(list.size()) == size, "dicl: ", name, " needs one tensor for each of the ", size, " ranks, not ", list.size());
}

void check_dtype(const char* name, const at::Tensor& a, const at::Tensor& b) {
    TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "dicl: ", name, ": the output is ", a.scalar_type(), ", the input ", b.scalar_type(),
                     "; they must be the same");
}

void check_times(const char* name, const at::Tensor& large, const at::Tensor& small, int size, const char* which) {
    TORCH_CHECK_VALUE(large.numel() == small.numel() * size, "dicl: ", name, ": the ", which, " has ", large.numel(), " elements; ", size, " ranks with ",
                      small.numel(), " each need ", small.numel() * size);
    check_dtype(name, large, small);
}

void check_splits(const char* name, const at::Tensor& tensor, const std::vector<int64_t>& splits, int size, const char* which) {
    const int64_t rows = tensor.dim() ? tensor.size(0) : 1;
    if (splits.empty()) {
        TORCH_CHECK_VALUE(rows % size == 0, "dicl: ", name, ": the ", which, " has ", rows, " rows, which ", size,
                          " ranks cannot share equally; give split sizes");
        return;
    }
    int64_t sum = 0;
    for (const int64_t split : splits) sum += split;
    TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == size && sum == rows, "dicl: ", name, ": the ", which, " split sizes must be ", size,
                      " numbers with the sum ", rows, ", not ", splits);
}

}  // namespace

void set_host_backend_factory(HostBackendFactory factory) { host_backend_factory() = std::move(factory); }

c10::intrusive_ptr<DiclBackend> DiclBackend::make(const c10::intrusive_ptr<c10d::Store>& store, GroupIdentity identity,
                                                  std::chrono::milliseconds timeout) {
    TORCH_CHECK(host_backend_factory(), "dicl: import torch_dipu.distributed first");
    auto transport = host_transport(host_backend_factory()(store, identity.rank, identity.size, timeout));
    auto group = CommunicationGroup::make(std::move(transport), identity, store);
    return c10::make_intrusive<DiclBackend>(std::move(group), std::move(identity), timeout);
}

DiclBackend::DiclBackend(std::shared_ptr<CommunicationGroup> group, GroupIdentity identity, std::chrono::milliseconds timeout)
    : c10d::Backend(identity.rank, identity.size),
      group_(std::move(group)),
      identity_(std::move(identity)),
      options_(c10::make_intrusive<Options>(timeout)) {
    options_->group_name = identity_.name;
    options_->global_ranks_in_group.assign(identity_.global_ranks.begin(), identity_.global_ranks.end());
}

DiclBackend::~DiclBackend() = default;

void DiclBackend::abort() { group_->abort("it was aborted"); }

// Every operation ends by its own timeout at the latest.
void DiclBackend::shutdown() {
    if (!group_->failed()) group_->drain(options_->timeout);
}

c10::intrusive_ptr<c10d::Backend> DiclBackend::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& options) {
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    if (mine == ranks.end()) return nullptr;
    GroupIdentity identity{options->group_name, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), {}};
    for (const int rank : ranks) identity.global_ranks.push_back(identity_.global_ranks[rank]);
    return make(store, std::move(identity), options->timeout);
}

// ---- issuing ----

std::shared_ptr<Operation> DiclBackend::operation(const char* name, OpType type, std::chrono::milliseconds timeout) const {
    return std::make_shared<Operation>(name, type, timeout == c10d::kUnsetTimeout ? options_->timeout : timeout);
}

void DiclBackend::name_peer(Operation& op, int peer) const {
    TORCH_CHECK_VALUE(peer >= 0 && peer < size_, "dicl: ", op.name, ": the group has the ranks 0 to ", size_ - 1, ", not ", peer);
    op.peer = peer;
    op.peer_name = "rank " + std::to_string(identity_.global_ranks[peer]);
}

DiclBackend::WorkPointer DiclBackend::issue(std::shared_ptr<Operation> op, Tensors results) {
    if (op->device < 0) op->device = device_of(*op);
    std::unique_lock<std::mutex> lock(coalescing_mutex_);
    group_->call(*op);
    auto work = c10::make_intrusive<DeviceWork>(*op, rank_, std::move(results));
    op->works.push_back(work);
    if (!coalescing_) {
        group_->start(std::move(op));
        return work;
    }
    work->set_held(true);
    const bool handle = !op->waited_for;  // else it is the whole block that is waited for
    held_.push_back(std::move(op));
    return handle ? work : nullptr;
}

void DiclBackend::startCoalescing() {
    std::lock_guard<std::mutex> lock(coalescing_mutex_);
    TORCH_CHECK(!coalescing_, "dicl: calls are being coalesced already; blocks that coalesce do not nest");
    coalescing_ = true;
}

DiclBackend::WorkPointer DiclBackend::endCoalescing() {
    std::lock_guard<std::mutex> lock(coalescing_mutex_);
    coalescing_ = false;
    const auto held = std::move(held_);
    held_.clear();
    if (held.empty()) return nullptr;
    Tensors results;
    for (const auto& op : held)
        for (const auto& work : op->works) {
            const auto part = work->result();
            results.insert(results.end(), part.begin(), part.end());
        }
    auto all = c10::make_intrusive<DeviceWork>(*held[0], rank_, std::move(results), held.size());
    for (const auto& op : held) {
        for (const auto& work : op->works) work->set_held(false);
        op->works.push_back(all);
        group_->start(op);
    }
    return all;
}

// ---- collectives ----

DiclBackend::WorkPointer DiclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
    check_one("broadcast", tensors.size());
    auto op = operation("broadcast", OpType::BROADCAST, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = op->outputs = tensors;
    op->peer = static_cast<int>(options.rootRank);
    return issue(std::move(op), tensors);
}

DiclBackend::WorkPointer DiclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
    check_one("all_reduce", tensors.size());
    auto op = operation("all_reduce", OpType::ALLREDUCE, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = op->outputs = tensors;
    op->reduction = options.reduceOp;
    return issue(std::move(op), tensors);
}

DiclBackend::WorkPointer DiclBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
    auto op = operation("all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = op->outputs = tensors;
    op->reduction = options.reduceOp;
    return issue(std::move(op), tensors);
}

DiclBackend::WorkPointer DiclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
    check_one("reduce", tensors.size());
    auto op = operation("reduce", OpType::REDUCE, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = op->outputs = tensors;
    op->reduction = options.reduceOp;
    op->peer = static_cast<int>(options.rootRank);
    return issue(std::move(op), tensors);
}

DiclBackend::WorkPointer DiclBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    check_one("all_gather", inputs.size());
    return allgather_coalesced(outputs, inputs, options);
}

DiclBackend::WorkPointer DiclBackend::allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    auto op = operation("all_gather", OpType::ALLGATHER, options.timeout);
    op->waited_for = !options.asyncOp;
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "dicl: all_gather: ", outputs.size(), " lists of outputs for ", inputs.size(), " inputs");
    Tensors results;
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_list("all_gather", outputs[i], size_);
        check_times("all_gather", outputs[i][rank_], inputs[i], 1, "own output");
        results.insert(results.end(), outputs[i].begin(), outputs[i].end());
    }
    op->inputs = inputs;
    op->parts = outputs;
    return issue(std::move(op), std::move(results));
}

DiclBackend::WorkPointer DiclBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
}

DiclBackend::WorkPointer DiclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    auto op = operation("all_gather_into_tensor", OpType::_ALLGATHER_BASE, options.timeout);
    op->waited_for = !options.asyncOp;
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "dicl: all_gather_into_tensor: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) check_times("all_gather_into_tensor", outputs[i], inputs[i], size_, "output");
    op->inputs = inputs;
    op->outputs = outputs;
    return issue(std::move(op), outputs);
}

DiclBackend::WorkPointer DiclBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
    check_one("gather", inputs.size());
    auto op = operation("gather", OpType::GATHER, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = inputs;
    op->peer = static_cast<int>(options.rootRank);
    Tensors results;
    if (op->peer == rank_) {
        check_one("gather (lists of outputs)", outputs.size());
        check_list("gather", outputs[0], size_);
        for (const auto& part : outputs[0]) check_times("gather", part, inputs[0], 1, "output");
        op->parts = outputs;
        results = outputs[0];
    }
    return issue(std::move(op), std::move(results));
}

DiclBackend::WorkPointer DiclBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
    check_one("scatter", outputs.size());
    auto op = operation("scatter", OpType::SCATTER, options.timeout);
    op->waited_for = !options.asyncOp;
    op->outputs = outputs;
    op->peer = static_cast<int>(options.rootRank);
    if (op->peer == rank_) {
        check_one("scatter (lists of inputs)", inputs.size());
        check_list("scatter", inputs[0], size_);
        for (const auto& part : inputs[0]) check_times("scatter", part, outputs[0], 1, "input");
        op->parts = inputs;
    }
    return issue(std::move(op), outputs);
}

DiclBackend::WorkPointer DiclBackend::reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) {
    check_one("reduce_scatter", outputs.size());
    check_one("reduce_scatter (lists of inputs)", inputs.size());
    check_list("reduce_scatter", inputs[0], size_);
    check_times("reduce_scatter", inputs[0][rank_], outputs[0], 1, "own input");
    auto op = operation("reduce_scatter", OpType::REDUCE_SCATTER, options.timeout);
    op->waited_for = !options.asyncOp;
    op->outputs = outputs;
    op->parts = inputs;
    op->reduction = options.reduceOp;
    return issue(std::move(op), outputs);
}

DiclBackend::WorkPointer DiclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

DiclBackend::WorkPointer DiclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
    auto op = operation("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, options.timeout);
    op->waited_for = !options.asyncOp;
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "dicl: reduce_scatter_tensor: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) check_times("reduce_scatter_tensor", inputs[i], outputs[i], size_, "input");
    op->inputs = inputs;
    op->outputs = outputs;
    op->reduction = options.reduceOp;
    return issue(std::move(op), outputs);
}

DiclBackend::WorkPointer DiclBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                                    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    check_dtype("all_to_all_single", output, input);
    check_splits("all_to_all_single", output, output_splits, size_, "output");
    check_splits("all_to_all_single", input, input_splits, size_, "input");
    auto op = operation("all_to_all_single", OpType::ALLTOALL_BASE, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = {input};
    op->outputs = {output};
    op->output_splits = output_splits;
    op->input_splits = input_splits;
    return issue(std::move(op), {output});
}

DiclBackend::WorkPointer DiclBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
    check_list("all_to_all", outputs, size_);
    check_list("all_to_all", inputs, size_);
    check_dtype("all_to_all", outputs[0], inputs[0]);
    auto op = operation("all_to_all", OpType::ALLTOALL, options.timeout);
    op->waited_for = !options.asyncOp;
    op->inputs = inputs;
    op->outputs = outputs;
    return issue(std::move(op), outputs);
}

// ---- messages ----

DiclBackend::WorkPointer DiclBackend::send(Tensors& tensors, int peer, int tag) {
    check_one("send", tensors.size());
    auto op = operation("send", OpType::SEND, c10d::kUnsetTimeout);
    op->inputs = tensors;
    name_peer(*op, peer);
    op->tag = tag;
    return issue(std::move(op), tensors);
}

DiclBackend::WorkPointer DiclBackend::recv(Tensors& tensors, int peer, int tag) {
    check_one("recv", tensors.size());
    auto op = operation("recv", OpType::RECV, c10d::kUnsetTimeout);
    op->outputs = tensors;
    name_peer(*op, peer);
    op->tag = tag;
    return issue(std::move(op), tensors);
}

DiclBackend::WorkPointer DiclBackend::recvAnysource(Tensors& tensors, int tag) {
    check_one("recv", tensors.size());
    auto op = operation("recv", OpType::RECVANYSOURCE, c10d::kUnsetTimeout);
    op->outputs = tensors;
    op->peer_name = "any rank";
    op->tag = tag;
    return issue(std::move(op), tensors);
}

// ---- barriers ----

DiclBackend::WorkPointer DiclBackend::barrier(const c10d::BarrierOptions& options) {
    auto op = operation("barrier", OpType::BARRIER, options.timeout);
    op->waited_for = !options.asyncOp;
    if (options.device && options.device->is_privateuseone()) op->device = index_or_current(*options.device);
    return issue(std::move(op), {});
}

void DiclBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
    auto op = operation("monitored_barrier", OpType::BARRIER, options.timeout);
    op->monitored = true;
    op->wait_for_all = wait_for_all;
    issue(std::move(op), {})->wait();
}

}  // namespace dipu
