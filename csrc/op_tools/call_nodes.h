// The autograd nodes that a call makes: where gradients reach it, and where they leave it.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/python_headers.h>

#include <optional>
#include <utility>
#include <vector>

namespace op_tools {

using torch::autograd::Node;
// A shared or an intrusive pointer, by the version of torch.
using NodePointer = decltype(torch::autograd::Edge::function);

struct CallNode {
    Node* node;
    std::vector<std::pair<uint32_t, size_t>> outputs;  // which of its gradients come from which output of the call
    std::vector<std::pair<size_t, size_t>> to_inputs;  // which of those it gives go to which input
    bool is_last = false;                              // whether gradients leave the call here
};

// Begun before the call, which may change its inputs. `nodes` is for the same thread, after the call.
class CallNodes {
   public:
    CallNodes();
    explicit CallNodes(const std::vector<at::Tensor>& inputs);

    bool any() const;
    // Those that gradients of `outputs` pass. The nodes live as long as the outputs' graph.
    std::vector<CallNode> between(const std::vector<at::Tensor>& outputs) const;
    // Puts what `make` returns into the metadata of those that have nothing under this key. With the GIL held.
    void mark(const std::vector<at::Tensor>& outputs, PyObject* key, PyObject* make) const;

   private:
    std::optional<size_t> input(const torch::autograd::Edge& edge) const;

    struct Computed {
        NodePointer node;
        uint32_t number;
        size_t input;
    };
    std::vector<Computed> computed_;
    std::vector<std::pair<const at::TensorImpl*, size_t>> leaves_;
    uint64_t first_;
    uint64_t thread_;
};

// The tensors in nested lists, tuples and dicts, in order. With the GIL held.
std::vector<at::Tensor> tensors_in(PyObject* value);

}  // namespace op_tools
