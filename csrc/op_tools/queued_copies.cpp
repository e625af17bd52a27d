// Copies of a call's tensors into memory of the host, queued on the devices' current streams, made for a whole call at once.
//
// What op_tools.transfer does one tensor after the other, for tensors of the usual kind: as many as a step of an optimizer has in
// one call. Python has the interpreter back once and not after each copy. Where any tensor of a call is of another kind, or a copy
// cannot be made, Python does all of the call and says what is wrong.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "python_call.h"
#include "thread.h"

namespace op_tools {
namespace {

bool is_accelerator(c10::Device device) { return !device.is_cpu() && !device.is_meta(); }

void add_once(std::vector<c10::Device>& devices, c10::Device device) {
    if (is_accelerator(device) && std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
}

// ---- tensors ----

bool is_number(PyObject* value) {
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value);
}

// Strided memory that belongs to a tensor of no class of the program's.
bool is_usual(PyObject* object) {
    if (!THPVariable_CheckExact(object)) return false;
    const auto& tensor = THPVariable_Unpack(object);
    if (!(tensor.key_set() & wrapper_keys).empty() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
    return tensor.layout() == at::kStrided && !tensor.is_nested() && tensor.has_storage() && !tensor.is_meta() && !tensor.is_quantized() &&
           !tensor._is_zerotensor() && !tensor.is_conj() && !tensor.is_neg();
}

// Both ends contiguous, whatever the order of the dimensions: of others some devices make a copy that is waited for.
at::Tensor pinned_copy(const at::Tensor& tensor) {
    const auto strides = tensor.strides();
    std::vector<int64_t> order(strides.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t one, int64_t other) { return strides[one] > strides[other]; });
    const bool in_order = std::is_sorted(order.begin(), order.end());
    const auto source = in_order ? tensor : tensor.permute(order);
    auto pinned = at::empty(source.sizes(), at::TensorOptions(at::kCPU).dtype(tensor.dtype()).pinned_memory(true));
    pinned.copy_(source, /*non_blocking=*/true);
    if (in_order) return pinned;
    std::vector<int64_t> back(order.size());
    for (size_t index = 0; index < order.size(); ++index) back[order[index]] = static_cast<int64_t>(index);
    return pinned.permute(back);
}

at::Tensor host_copy(const at::Tensor& tensor) {
    // One row shown many times is copied once and shown many times again.
    auto slim = tensor;
    if (tensor.numel() > 1)
        for (int64_t dim = 0; dim < tensor.dim(); ++dim)
            if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) slim = slim.narrow(dim, 0, 1);
    const auto copy = slim.is_cpu() ? slim.to(at::Device(at::kCPU), slim.scalar_type(), /*non_blocking=*/false, /*copy=*/true) : pinned_copy(slim);
    return slim.is_same(tensor) ? copy : copy.expand(tensor.sizes());
}

// The tensors of one call, each once, and their copies. Tensors that show the same memory are copied with that memory, so that a
// write to one is seen by the others, as on the device.
class Batch {
   public:
    // `with_memory`: tensors may share memory. False for a tensor of another kind.
    bool add(PyObject* object, bool with_memory) {
        if (!is_usual(object)) return false;
        const auto& tensor = THPVariable_Unpack(object);
        if (!places_.try_emplace(object, tensors_.size()).second) return true;
        if (with_memory && !memories_.insert(memory_of(tensor)).second) shared_.insert(memory_of(tensor));
        tensors_.push_back(tensor);
        return true;
    }

    // All of them among values, in lists and tuples. False where some are of another kind, or stand in what only Python looks into.
    bool add_all(PyObject* value, bool with_memory) {
        if (is_number(value)) return true;
        if (THPVariable_Check(value)) return add(value, with_memory);
        if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
            const auto items = py::reinterpret_borrow<py::object>(value);
            for (const py::handle item : items)
                if (!add_all(item.ptr(), with_memory)) return false;
            return true;
        }
        if (!PyDict_CheckExact(value)) return !PyTuple_Check(value) && !PyList_Check(value) && !PyDict_Check(value);
        for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value))
            if (!add_all(item.ptr(), with_memory)) return false;
        return true;
    }

    void copy() {
        const at::AutoDispatchBelowADInplaceOrView no_graph;
        copies_.reserve(tensors_.size());
        std::unordered_map<c10::StorageImpl*, at::Tensor> whole;
        for (const auto& tensor : tensors_) {
            auto* const memory = memory_of(tensor);
            if (shared_.count(memory) == 0) {
                copies_.push_back(host_copy(tensor));
                continue;
            }
            const auto [found, is_new] = whole.try_emplace(memory);
            if (is_new) found->second = host_copy(at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage()));
            auto shown = at::empty({0}, at::TensorOptions(at::kCPU).dtype(tensor.dtype()));
            copies_.push_back(shown.set_(found->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides()));
        }
    }

    // The copy of a tensor; None where there is none.
    py::object copy_of(PyObject* object) const {
        const auto found = places_.find(object);
        if (found == places_.end()) return py::none();
        auto copy = py::reinterpret_steal<py::object>(THPVariable_Wrap(copies_[found->second]));
        if (!copy) throw py::error_already_set();
        return copy;
    }

    const std::vector<at::Tensor>& tensors() const { return tensors_; }

   private:
    static c10::StorageImpl* memory_of(const at::Tensor& tensor) {
        return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    }

    std::unordered_map<PyObject*, size_t> places_;  // the caller holds the objects
    std::unordered_set<c10::StorageImpl*> memories_, shared_;
    std::vector<at::Tensor> tensors_, copies_;
};

// The same tree with copies of its tensors. `leaf` is asked for what is neither a tensor nor a plain number.
class Rebuilt {
   public:
    Rebuilt(const Batch& batch, const py::object& leaf) : batch_(batch), leaf_(leaf) {}

    py::object value(PyObject* value) {
        if (is_number(value)) return py::reinterpret_borrow<py::object>(value);
        if (THPVariable_Check(value)) return tensor(value);
        if (PyTuple_CheckExact(value)) {
            py::tuple items(PyTuple_GET_SIZE(value));
            for (size_t index = 0; index < items.size(); ++index) items[index] = this->value(PyTuple_GET_ITEM(value, index));
            return std::move(items);
        }
        if (PyList_CheckExact(value)) {
            py::list items(PyList_GET_SIZE(value));
            for (size_t index = 0; index < items.size(); ++index) items[index] = this->value(PyList_GET_ITEM(value, index));
            return std::move(items);
        }
        if (!PyDict_CheckExact(value)) return leaf_(py::handle(value));
        py::dict items;
        for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) items[key] = this->value(item.ptr());
        return std::move(items);
    }

   private:
    py::object tensor(PyObject* object) {
        auto& known = known_[object];
        if (!known) known = batch_.copy_of(object);
        return known;
    }

    const Batch& batch_;
    const py::object& leaf_;
    std::unordered_map<PyObject*, py::object> known_;
};

// ---- when they are done ----

// Copies that devices make on their current streams: when they are done and, if `timed`, how long the devices took.
class QueuedCopies {
   public:
    explicit QueuedCopies(bool timed) : timed_(timed) {}

    // What is queued from now on until `end`, on the accelerators among these.
    void begin(const std::vector<c10::Device>& devices) {
        for (const auto device : devices) {
            const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
            under_way_.push_back({stream, timed_ ? recorded(stream) : std::nullopt, std::nullopt});
        }
    }
    void end() {
        for (auto& span : under_way_) {
            span.end = recorded(span.stream);
            spans_.push_back(std::move(span));
        }
        under_way_.clear();
    }

    // The arguments of a call as it finds them; None where Python has to copy them.
    py::object call(const py::tuple& args, const py::dict& kwargs, const py::object& leaf) {
        Batch batch;
        if (!batch.add_all(args.ptr(), true) || !batch.add_all(kwargs.ptr(), true) || !copy(batch)) return py::none();
        Rebuilt rebuilt(batch, leaf);
        return py::make_tuple(rebuilt.value(args.ptr()), rebuilt.value(kwargs.ptr()));
    }

    // What a call gives back, and of `tensors` what it has left of those that are `written`; None where Python has to copy them.
    py::object results(const py::list& values, const py::list& written, const py::list& tensors) {
        Batch batch;
        if (!batch.add_all(values.ptr(), false) || !batch.add_all(written.ptr(), false) || !copy(batch)) return py::none();
        const py::object none = py::none();
        Rebuilt rebuilt(batch, none);
        py::list copies(values.size()), left(tensors.size());
        for (size_t index = 0; index < values.size(); ++index) {
            PyObject* const value = PyList_GET_ITEM(values.ptr(), index);
            copies[index] = THPVariable_Check(value) ? rebuilt.value(value) : py::reinterpret_borrow<py::object>(value);
        }
        std::unordered_set<PyObject*> overwritten;
        for (const py::handle tensor : written) overwritten.insert(tensor.ptr());
        for (size_t index = 0; index < tensors.size(); ++index) {
            PyObject* const tensor = PyList_GET_ITEM(tensors.ptr(), index);
            left[index] = overwritten.count(tensor) == 0 ? none : rebuilt.value(tensor);
        }
        return py::make_tuple(std::move(copies), std::move(left));
    }

    bool arrived() const {
        return std::all_of(spans_.begin(), spans_.end(), [](const Span& span) { return span.end->query(); });
    }

    void wait() const {
        for (const auto& span : spans_) span.end->synchronize();
    }

    // Of the devices' time, once they have arrived; 0 where a device does not tell.
    double seconds() const {
        double milliseconds = 0;
        try {
            for (const auto& span : spans_)
                if (span.start) milliseconds += span.start->elapsedTime(*span.end);
        } catch (const std::exception&) {
            return 0;
        }
        return milliseconds * 1e-3;
    }

   private:
    struct Span {
        c10::Stream stream;
        std::optional<c10::Event> start, end;
    };

    std::optional<c10::Event> recorded(const c10::Stream& stream) const {
        std::optional<c10::Event> event;
        event.emplace(stream.device_type(), timed_ ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
        event->record(stream);
        return event;
    }

    // False where it did not work: what Python makes of the same call then says why.
    bool copy(Batch& batch) {
        std::vector<c10::Device> devices;
        for (const auto& tensor : batch.tensors()) add_once(devices, tensor.device());
        const py::gil_scoped_release others;
        try {
            begin(devices);
            batch.copy();
            end();
            return true;
        } catch (const c10::Error&) {
            under_way_.clear();
            return false;
        }
    }

    const bool timed_;
    std::vector<Span> spans_, under_way_;
};

// The bytes of tensors, each counted once, the accelerators among their devices, and whether some are on the host.
py::tuple extent(const py::list& tensors) {
    std::unordered_set<PyObject*> seen;
    std::vector<c10::Device> devices;
    size_t bytes = 0;
    bool on_host = false;
    for (const py::handle object : tensors) {
        if (!seen.insert(object.ptr()).second) continue;
        const auto& tensor = THPVariable_Unpack(object.ptr());
        add_once(devices, tensor.device());
        on_host = on_host || tensor.is_cpu();
        if (tensor.layout() == at::kStrided) bytes += static_cast<size_t>(tensor.numel()) * tensor.element_size();
    }
    py::list accelerators;
    for (const auto device : devices) accelerators.append(py::reinterpret_steal<py::object>(THPDevice_New(device)));
    return py::make_tuple(bytes, std::move(accelerators), on_host);
}

void begin_queueing(QueuedCopies& copies, const py::list& tensors) {
    std::vector<c10::Device> devices;
    for (const py::handle tensor : tensors) add_once(devices, THPVariable_Unpack(tensor.ptr()).device());
    copies.begin(devices);
}

py::object copies_of_arguments(QueuedCopies& copies, const py::tuple& args, const py::dict& kwargs, const py::object& leaf) {
    return copies.call(args, kwargs, leaf);
}

py::object copies_of_results(QueuedCopies& copies, const py::list& values, const py::list& written, const py::list& tensors) {
    return copies.results(values, written, tensors);
}

}  // namespace

void bind_copies(py::module_& module) {
    module.def("extent", &extent, "The bytes of tensors, their accelerators, and whether some are on the host.");
    const auto releasing = py::call_guard<py::gil_scoped_release>();
    py::class_<QueuedCopies>(module, "QueuedCopies", "Copies of calls' tensors into memory of the host that devices make on their current streams.")
        .def(py::init<bool>(), py::arg("timed"))
        .def("call", torch::wrap_pybind_function(&copies_of_arguments), "Copies of the arguments of a call; None where Python has to make them. leaf(value): for other values.")
        .def("results", torch::wrap_pybind_function(&copies_of_results), "Copies of results, and of what is left of written arguments; None likewise.")
        .def("begin", &begin_queueing, "Python queues copies of these tensors.")
        .def("end", &QueuedCopies::end, "It has done so.")
        .def("arrived", &QueuedCopies::arrived, releasing, "Whether they are done.")
        .def("wait", &QueuedCopies::wait, releasing, "Wait until they are done.")
        .def("seconds", &QueuedCopies::seconds, "Of the devices' time, if timed; 0 where a device does not tell.");
}

}  // namespace op_tools
