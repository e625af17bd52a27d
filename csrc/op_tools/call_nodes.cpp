#include "call_nodes.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <unordered_map>

#include "python_call.h"

namespace op_tools {
namespace {

// A node that stands for a leaf's gradient has this number; it belongs to no call.
constexpr uint64_t leaf_number = std::numeric_limits<uint64_t>::max();

void collect(PyObject* value, std::vector<at::Tensor>& found) {
    if (THPVariable_Check(value)) {
        found.push_back(THPVariable_Unpack(value));
    } else if (PyTuple_Check(value) || PyList_Check(value)) {
        const auto size = PySequence_Fast_GET_SIZE(value);
        for (Py_ssize_t index = 0; index < size; ++index) collect(PySequence_Fast_GET_ITEM(value, index), found);
    } else if (PyDict_Check(value)) {
        PyObject *key = nullptr, *item = nullptr;
        for (Py_ssize_t position = 0; PyDict_Next(value, &position, &key, &item) != 0;) collect(item, found);
    }
}

}  // namespace

std::vector<at::Tensor> tensors_in(PyObject* value) {
    std::vector<at::Tensor> found;
    collect(value, found);
    return found;
}

CallNodes::CallNodes() : first_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

CallNodes::CallNodes(const std::vector<at::Tensor>& inputs) : CallNodes() {
    for (size_t index = 0; index < inputs.size(); ++index) {
        const auto& tensor = inputs[index];
        if (!tensor.defined() || !tensor.requires_grad()) continue;
        if (auto node = tensor.grad_fn()) {
            computed_.push_back({std::move(node), static_cast<uint32_t>(tensor.output_nr()), index});
        } else {
            leaves_.emplace_back(tensor.unsafeGetTensorImpl(), index);
        }
    }
    first_ = at::sequence_number::peek();  // the node of a view that was written to is made when it is asked for
}

bool CallNodes::any() const { return at::sequence_number::peek() != first_; }

std::optional<size_t> CallNodes::input(const torch::autograd::Edge& edge) const {
    for (const auto& [node, number, index] : computed_)
        if (node == edge.function && number == edge.input_nr) return index;
    if (leaves_.empty() || edge.function->sequence_nr() != leaf_number) return std::nullopt;
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&*edge.function);
    if (leaf == nullptr) return std::nullopt;
    for (const auto& [tensor, index] : leaves_)
        if (tensor == leaf->variable.unsafeGetTensorImpl()) return index;
    return std::nullopt;
}

std::vector<CallNode> CallNodes::between(const std::vector<at::Tensor>& outputs) const {
    std::vector<NodePointer> makers;
    for (const auto& tensor : outputs) makers.push_back(tensor.grad_fn());
    const auto end = at::sequence_number::peek();
    const auto is_ours = [&](const Node& node) {
        // Numbers are counted by thread.
        return first_ <= node.sequence_nr() && node.sequence_nr() < end && node.thread_id() == thread_;
    };
    std::vector<CallNode> known;
    std::unordered_map<const Node*, size_t> numbers;
    const auto number_of = [&](Node& node) {
        const auto [found, is_new] = numbers.emplace(&node, known.size());
        if (is_new) known.push_back({&node, {}, {}});
        return found->second;
    };
    for (size_t index = 0; index < outputs.size(); ++index) {
        if (!makers[index] || !is_ours(*makers[index])) continue;
        const auto output = static_cast<uint32_t>(outputs[index].output_nr());
        if (input({makers[index], output})) continue;
        auto& of_node = known[number_of(*makers[index])].outputs;
        const auto is_same = [&](const auto& other) { return other.first == output; };
        if (std::none_of(of_node.begin(), of_node.end(), is_same)) of_node.emplace_back(output, index);
    }
    for (size_t number = 0; number < known.size(); ++number) {
        bool leaves = false, inside = false;
        const auto& edges = known[number].node->next_edges();
        for (size_t slot = 0; slot < edges.size(); ++slot) {
            if (!edges[slot].is_valid()) continue;
            if (const auto index = input(edges[slot])) {
                known[number].to_inputs.emplace_back(slot, *index);
            } else if (is_ours(*edges[slot].function)) {
                number_of(*edges[slot].function);
                inside = true;
            } else {
                leaves = true;
            }
        }
        known[number].is_last = leaves || !known[number].to_inputs.empty() || !inside;
    }
    return known;
}

void CallNodes::mark(const std::vector<at::Tensor>& outputs, PyObject* key, PyObject* make) const {
    py::object value;
    for (const auto& node : between(outputs)) {
        PyObject* notes = static_cast<torch::autograd::PyAnomalyMetadata*>(node.node->metadata())->dict();
        if (PyDict_Contains(notes, key) == 1) continue;
        if (!value) value = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(make));
        if (!value || PyDict_SetItem(notes, key, value.ptr()) != 0) throw py::error_already_set();
    }
}

void bind_nodes(py::module_& module) {
    py::class_<CallNodes>(module, "CallNodes", "The autograd nodes that a call on this thread makes.")
        .def(py::init([](const py::list& tensors) { return CallNodes(tensors_in(tensors.ptr())); }), py::arg("tensors"),
             "The call begins, with these tensors.")
        .def("mark", [](const CallNodes& nodes, const py::object& result, const py::str& key, const py::object& make) {
            if (nodes.any()) nodes.mark(tensors_in(result.ptr()), key.ptr(), make.ptr());
        }, py::arg("result"), py::arg("key"), py::arg("make"), "It has returned this: its nodes get what `make` returns, unless they have one.");
}

}  // namespace op_tools
