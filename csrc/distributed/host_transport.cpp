// Groups over a backend of torch for host tensors (gloo).
//
// Data that only moves travels as bytes, so every dtype does. A reduce-scatter is an exchange and a reduction of what arrived: half
// the bytes of an all-reduce, and each result is rounded once.
#include <ATen/ATen.h>

#include <mutex>
#include <numeric>

#include "host_reduction.h"
#include "host_tensors.h"
#include "transport.h"

namespace dipu {
namespace {

using c10d::OpType;
using Pending = c10::intrusive_ptr<c10d::Work>;

int64_t product_of_rest(const at::Tensor& tensor) {
    int64_t product = 1;
    for (int64_t d = 1; d < tensor.dim(); ++d) product *= tensor.size(d);
    return product;
}

class HostTransport final : public Transport {
   public:
    explicit HostTransport(c10::intrusive_ptr<c10d::Backend> backend)
        : backend_(std::move(backend)), rank_(backend_->getRank()), ranks_(backend_->getSize()) {}

    void check(const Operation& op) const override {
        switch (op.type) {
            case OpType::ALLREDUCE: case OpType::ALLREDUCE_COALESCED: case OpType::REDUCE: case OpType::REDUCE_SCATTER:
            case OpType::_REDUCE_SCATTER_BASE:
                for (const auto& tensor : op.outputs) (void)HostReduction(op.reduction, tensor.scalar_type(), ranks_);
                break;
            default: break;
        }
    }

    // Collectives in the order of their calls. Messages wait for nothing but earlier ones of the same kind between the same ranks,
    // so two ranks may send to each other first and receive then.
    std::string lane(const Operation& op) const override {
        if (!op.point_to_point()) return "collectives";
        const int peer = op.type == OpType::RECVANYSOURCE ? kAnySource : op.peer;
        return std::string(op.type == OpType::SEND ? "to " : "from ") + std::to_string(peer) + " tag " + std::to_string(op.tag);
    }

    void run(Operation& op) override {
        HostTensors host;
        switch (op.type) {
            case OpType::ALLREDUCE: case OpType::ALLREDUCE_COALESCED: all_reduce(op, host); break;
            case OpType::REDUCE: reduce(op, host); break;
            case OpType::BROADCAST: broadcast(op, host); break;
            case OpType::ALLGATHER: all_gather(op, host); break;
            case OpType::_ALLGATHER_BASE: all_gather_flat(op, host); break;
            case OpType::GATHER: gather(op, host); break;
            case OpType::SCATTER: scatter(op, host); break;
            case OpType::REDUCE_SCATTER: case OpType::_REDUCE_SCATTER_BASE: reduce_scatter(op, host); break;
            case OpType::ALLTOALL_BASE: case OpType::ALLTOALL: all_to_all(op, host); break;
            case OpType::SEND: send(op, host); break;
            case OpType::RECV: case OpType::RECVANYSOURCE: receive(op, host); break;
            case OpType::BARRIER: barrier(op); break;
            default: TORCH_INTERNAL_ASSERT(false, "dicl: no such operation: ", op.name);
        }
        host.write_back();
    }

   private:
    // The backend numbers its calls; waiting is done without the lock.
    template <class Issue>
    Pending issue(Issue&& call) {
        std::lock_guard<std::mutex> lock(issuing_);
        return call();
    }
    static void finish(const std::vector<Pending>& works) {
        std::exception_ptr failure;
        for (const auto& work : works) {
            try {
                work->wait();
            } catch (...) {
                if (!failure) failure = std::current_exception();
            }
        }
        if (failure) std::rethrow_exception(failure);
    }

    void all_reduce(Operation& op, HostTensors& host) {
        struct Part {
            at::Tensor result, sent;
            HostReduction reduction;
        };
        std::vector<Part> parts;
        std::vector<Pending> works;
        for (const auto& tensor : op.outputs) {
            if (tensor.numel() == 0) continue;
            HostReduction reduction(op.reduction, tensor.scalar_type(), ranks_);
            at::Tensor result = host.in_place(tensor);
            parts.push_back({result, reduction.contribution(result), reduction});
            works.push_back(issue([&] {
                c10d::AllreduceOptions options;
                options.reduceOp = parts.back().reduction.operation();
                options.timeout = op.timeout;
                std::vector<at::Tensor> tensors{parts.back().sent};
                return backend_->allreduce(tensors, options);
            }));
        }
        finish(works);
        for (const auto& part : parts) part.reduction.finish(part.sent, part.result);
    }

    // The network uses the tensors of all ranks as scratch memory, so only the root gives its own.
    void reduce(Operation& op, HostTensors& host) {
        const at::Tensor& tensor = op.outputs[0];
        if (tensor.numel() == 0) return;
        const bool root = op.peer == rank_;
        const HostReduction reduction(op.reduction, tensor.scalar_type(), ranks_);
        const at::Tensor own = root ? host.in_place(tensor) : host.input(tensor);
        at::Tensor sent = reduction.contribution(own);
        if (!root && sent.data_ptr() == own.data_ptr()) sent = sent.clone();
        c10d::ReduceOptions options;
        options.reduceOp = reduction.operation();
        options.rootRank = op.peer;
        options.timeout = op.timeout;
        std::vector<at::Tensor> tensors{sent};
        issue([&] { return backend_->reduce(tensors, options); })->wait();
        if (root) reduction.finish(sent, own);
    }

    void broadcast_bytes(const at::Tensor& bytes, int root, std::chrono::milliseconds timeout) {
        if (bytes.numel() == 0) return;
        c10d::BroadcastOptions options;
        options.rootRank = root;
        options.timeout = timeout;
        std::vector<at::Tensor> tensors{bytes};
        issue([&] { return backend_->broadcast(tensors, options); })->wait();
    }

    void broadcast(Operation& op, HostTensors& host) {
        for (const auto& tensor : op.outputs)
            broadcast_bytes(bytes_of(op.peer == rank_ ? host.input(tensor) : host.output(tensor)), op.peer, op.timeout);
    }

    void all_gather(Operation& op, HostTensors& host) {
        for (size_t i = 0; i < op.inputs.size(); ++i) {
            const auto& wanted = op.parts[i];
            const at::Tensor own = bytes_of(host.input(op.inputs[i]));
            std::vector<at::Tensor> received;
            bool equal = true;
            for (const auto& tensor : wanted) {
                received.push_back(bytes_of(host.output(tensor)));
                equal = equal && tensor.nbytes() == wanted[0].nbytes();
            }
            if (equal && own.numel() == 0) continue;
            if (!equal) {  // every rank knows all sizes, so every rank comes here
                received[rank_].copy_(own);
                for (int root = 0; root < ranks_; ++root) broadcast_bytes(received[root], root, op.timeout);
                continue;
            }
            c10d::AllgatherOptions options;
            options.timeout = op.timeout;
            std::vector<std::vector<at::Tensor>> outputs{received};
            std::vector<at::Tensor> inputs{own};
            issue([&] { return backend_->allgather(outputs, inputs, options); })->wait();
        }
    }

    void all_gather_flat(Operation& op, HostTensors& host) {
        std::vector<Pending> works;
        std::vector<at::Tensor> kept;
        for (size_t i = 0; i < op.inputs.size(); ++i) {
            if (op.inputs[i].numel() == 0) continue;
            at::Tensor input = bytes_of(host.input(op.inputs[i])), output = bytes_of(host.output(op.outputs[i]));
            c10d::AllgatherOptions options;
            options.timeout = op.timeout;
            works.push_back(issue([&] { return backend_->_allgather_base(output, input, options); }));
            kept.insert(kept.end(), {input, output});
        }
        finish(works);
    }

    void gather(Operation& op, HostTensors& host) {
        std::vector<std::vector<at::Tensor>> outputs;
        std::vector<at::Tensor> inputs{bytes_of(host.input(op.inputs[0]))};
        if (inputs[0].numel() == 0) return;
        if (op.peer == rank_) {
            outputs.emplace_back();
            for (const auto& tensor : op.parts[0]) outputs[0].push_back(bytes_of(host.output(tensor)));
        }
        c10d::GatherOptions options;
        options.rootRank = op.peer;
        options.timeout = op.timeout;
        issue([&] { return backend_->gather(outputs, inputs, options); })->wait();
    }

    void scatter(Operation& op, HostTensors& host) {
        std::vector<std::vector<at::Tensor>> inputs;
        std::vector<at::Tensor> outputs{bytes_of(host.output(op.outputs[0]))};
        if (outputs[0].numel() == 0) return;
        if (op.peer == rank_) {
            inputs.emplace_back();
            for (const auto& tensor : op.parts[0]) inputs[0].push_back(bytes_of(host.input(tensor)));
        }
        c10d::ScatterOptions options;
        options.rootRank = op.peer;
        options.timeout = op.timeout;
        issue([&] { return backend_->scatter(outputs, inputs, options); })->wait();
    }

    // Sizes in bytes, one for each rank.
    Pending exchange(at::Tensor output, at::Tensor input, std::vector<int64_t> received, std::vector<int64_t> sent,
                     std::chrono::milliseconds timeout) {
        c10d::AllToAllOptions options;
        options.timeout = timeout;
        return issue([&] { return backend_->alltoall_base(output, input, received, sent, options); });
    }

    void reduce_scatter(Operation& op, HostTensors& host) {
        struct Part {
            at::Tensor result, rows, sent;
            HostReduction reduction;
        };
        std::vector<Part> parts;
        std::vector<Pending> works;
        for (size_t i = 0; i < op.outputs.size(); ++i) {
            const at::Tensor& tensor = op.outputs[i];
            const HostReduction reduction(op.reduction, tensor.scalar_type(), ranks_);
            std::vector<at::Tensor> contributions;
            if (op.type == OpType::_REDUCE_SCATTER_BASE)
                contributions.push_back(reduction.contribution(host.input(op.inputs[i])).reshape(-1));
            else
                for (const auto& part : op.parts[i]) contributions.push_back(reduction.contribution(host.input(part)).reshape(-1));
            const at::Tensor sent = contributions.size() == 1 ? contributions[0] : at::cat(contributions);
            if (sent.numel() == 0) continue;
            const auto item = static_cast<int64_t>(sent.itemsize());
            std::vector<int64_t> sizes(ranks_, tensor.numel() * item);
            if (op.type == OpType::REDUCE_SCATTER)
                for (int rank = 0; rank < ranks_; ++rank) sizes[rank] = op.parts[i][rank].numel() * item;
            const at::Tensor rows = at::empty({ranks_, tensor.numel()}, sent.options());
            parts.push_back({host.output(tensor), rows, sent, reduction});
            works.push_back(exchange(bytes_of(rows), bytes_of(sent), std::vector<int64_t>(ranks_, tensor.numel() * item), sizes, op.timeout));
        }
        finish(works);
        for (const auto& part : parts)
            part.reduction.finish(part.reduction.reduce_rows(part.rows).view(part.result.sizes()), part.result);
    }

    static std::vector<int64_t> byte_sizes(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks) {
        const int64_t row = product_of_rest(tensor) * static_cast<int64_t>(tensor.itemsize());
        std::vector<int64_t> sizes(ranks, static_cast<int64_t>(tensor.nbytes()) / ranks);
        for (size_t i = 0; i < splits.size(); ++i) sizes[i] = splits[i] * row;
        return sizes;
    }

    void all_to_all(Operation& op, HostTensors& host) {
        if (op.type == OpType::ALLTOALL_BASE) {
            const at::Tensor output = host.output(op.outputs[0]), input = host.input(op.inputs[0]);
            exchange(bytes_of(output), bytes_of(input), byte_sizes(output, op.output_splits, ranks_), byte_sizes(input, op.input_splits, ranks_),
                     op.timeout)
                ->wait();
            return;
        }
        std::vector<at::Tensor> inputs, outputs;
        std::vector<int64_t> sent, received;
        for (int rank = 0; rank < ranks_; ++rank) {
            inputs.push_back(bytes_of(host.input(op.inputs[rank])));
            outputs.push_back(bytes_of(host.output(op.outputs[rank])));
            sent.push_back(inputs.back().numel());
            received.push_back(outputs.back().numel());
        }
        const at::Tensor landing = at::empty({std::accumulate(received.begin(), received.end(), int64_t(0))}, at::kByte);
        exchange(landing, at::cat(inputs), received, sent, op.timeout)->wait();
        const auto arrived = landing.split_with_sizes(received);
        for (int rank = 0; rank < ranks_; ++rank) outputs[rank].copy_(arrived[rank]);
    }

    void send(Operation& op, HostTensors& host) {
        std::vector<at::Tensor> tensors{bytes_of(host.input(op.inputs[0]))};
        if (tensors[0].numel() == 0) return;
        issue([&] { return backend_->send(tensors, op.peer, op.tag); })->wait(op.timeout);
    }

    void receive(Operation& op, HostTensors& host) {
        std::vector<at::Tensor> tensors{bytes_of(host.output(op.outputs[0]))};
        if (tensors[0].numel() == 0 && op.type == OpType::RECV) return;
        const auto work = issue([&] {
            return op.type == OpType::RECV ? backend_->recv(tensors, op.peer, op.tag) : backend_->recvAnysource(tensors, op.tag);
        });
        work->wait(op.timeout);
        op.source = op.type == OpType::RECV ? op.peer : work->sourceRank();
    }

    void barrier(Operation& op) {
        c10d::BarrierOptions options;
        options.timeout = op.timeout;
        if (op.monitored)
            backend_->monitoredBarrier(options, op.wait_for_all);
        else
            issue([&] { return backend_->barrier(options); })->wait();
    }

    const c10::intrusive_ptr<c10d::Backend> backend_;
    const int rank_, ranks_;
    std::mutex issuing_;
};

}  // namespace

std::unique_ptr<Transport> host_transport(c10::intrusive_ptr<c10d::Backend> backend) {
    return std::make_unique<HostTransport>(std::move(backend));
}

}  // namespace dipu
