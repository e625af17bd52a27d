// The backend `dicl` of torch.distributed.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../runtime/vendor.h"
#include "../runtime/device.h"
#include "group.h"

namespace dipu {

// Makes torch's backend for host tensors of a group.
using HostBackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>&, int rank, int size,
                                                                           std::chrono::milliseconds timeout)>;
DIPU_API void set_host_backend_factory(HostBackendFactory factory);

class DIPU_API DiclBackend final : public c10d::Backend {
 public:
    struct Options final : c10d::Backend::Options {
        explicit Options(std::chrono::milliseconds timeout) : c10d::Backend::Options("dicl", timeout) {}
    };

    static c10::intrusive_ptr<DiclBackend> make(const c10::intrusive_ptr<c10d::Store>& store, GroupIdentity identity,
                                                std::chrono::milliseconds timeout);
    DiclBackend(std::shared_ptr<CommunicationGroup> group, GroupIdentity identity, std::chrono::milliseconds timeout);
    ~DiclBackend() override;

    const std::string getBackendName() const override { return "dicl"; }
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
    bool supportsSplitting() const override { return true; }
    bool supportsCoalescing() const override { return true; }
    void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
    void startCoalescing() override;
    c10::intrusive_ptr<c10d::Work> endCoalescing() override;
    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                            const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
    void setSequenceNumberForGroup() override {}  // each rank counts from 1
    uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
    c10d::ErrorType getError() override { return group_->failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS; }
    void enableCollectivesTiming() override {}  // always on
    void abort() override;
    void shutdown() override;

    using Tensors = std::vector<at::Tensor>;
    using Lists = std::vector<Tensors>;
    using WorkPointer = c10::intrusive_ptr<c10d::Work>;

    WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
    WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
    WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
    WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
    WorkPointer allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
    WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
    WorkPointer allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
    WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
    WorkPointer gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
    WorkPointer scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
    WorkPointer reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
    WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
    WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
    WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options) override;
    WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
    WorkPointer send(Tensors& tensors, int peer, int tag) override;
    WorkPointer recv(Tensors& tensors, int peer, int tag) override;
    WorkPointer recvAnysource(Tensors& tensors, int tag) override;
    WorkPointer barrier(const c10d::BarrierOptions& options) override;
    void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

 private:
    std::shared_ptr<Operation> operation(const char* name, c10d::OpType type, std::chrono::milliseconds timeout) const;
    void name_peer(Operation& operation, int peer) const;
    WorkPointer issue(std::shared_ptr<Operation> operation, Tensors results);

    const std::shared_ptr<CommunicationGroup> group_;
    const GroupIdentity identity_;
    const c10::intrusive_ptr<Options> options_;
    std::mutex coalescing_mutex_;
    bool coalescing_ = false;
    std::vector<std::shared_ptr<Operation>> held_;
};

}  // namespace dipu
