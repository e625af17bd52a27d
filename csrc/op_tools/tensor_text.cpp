#include "tensor_text.h"

#include <ATen/ExpandUtils.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <unordered_map>

#include "python_call.h"

namespace op_tools {
namespace {

constexpr size_t most_texts = 20'000;

struct FactsHash {
    size_t operator()(const TensorFacts& facts) const { return facts.hash(); }
};

void write_list(std::string& text, c10::IntArrayRef numbers) {
    const char* between = "[";
    for (const auto number : numbers) {
        text += between + std::to_string(number);
        between = ", ";
    }
    text += numbers.empty() ? "[]" : "]";
}

bool is_contiguous(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    int64_t expected = 1;
    bool contiguous = true;
    for (size_t index = sizes.size(); index-- > 0;) {
        if (sizes[index] == 0) return true;
        if (sizes[index] == 1) continue;
        contiguous = contiguous && strides[index] == expected;
        expected *= sizes[index];
    }
    return contiguous;
}

}  // namespace

TensorFacts::TensorFacts(const at::Tensor& tensor)
    : dtype_(tensor.scalar_type()), layout_(tensor.layout()), device_(tensor.device()), has_sizes_(false) {
    if (tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return;
    has_sizes_ = true;
    sizes_ = tensor.sizes();
    if (layout_ == at::kStrided) strides_ = tensor.strides();
}

void TensorFacts::add(const TensorFacts& other) {
    if (layout_ != at::kStrided) *this = other;
    if (layout_ == at::kStrided) strides_ = at::infer_dense_strides(sizes_, strides_);
}

size_t TensorFacts::hash() const {
    size_t value = c10::get_hash(dtype_, layout_, device_);
    for (const auto size : sizes_) value = c10::hash_combine(value, static_cast<size_t>(size));
    for (const auto stride : strides_) value = c10::hash_combine(value, static_cast<size_t>(stride));
    return value;
}

const std::string& TensorFacts::text() const {
    static auto* texts = new std::unordered_map<TensorFacts, std::string, FactsHash>();
    const auto found = texts->find(*this);
    if (found != texts->end()) return found->second;
    if (texts->size() >= most_texts) texts->clear();
    return texts->emplace(*this, written()).first->second;
}

std::string TensorFacts::written() const {
    std::string text = torch::getTHPDtype(dtype_)->name;
    if (!has_sizes_) return text + " " + torch::getTHPLayout(layout_)->name + " Tensor@" + device_.str();
    write_list(text, sizes_);
    if (layout_ != at::kStrided) text += std::string(" ") + torch::getTHPLayout(layout_)->name;
    text += "@" + device_.str();
    if (layout_ == at::kStrided && !is_contiguous(sizes_, strides_)) {
        text += " stride ";
        write_list(text, strides_);
    }
    return text;
}

// ---- values ----

namespace {

// Writes values as op_tools.describe.brief does; `other` is asked for what is rare.
class Writer {
   public:
    Writer(PyObject* other, Py_ssize_t most_items) : other_(other), most_items_(most_items) {}

    void call(PyObject* args, PyObject* kwargs) {
        const char* between = "(";
        for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(args); ++index, between = ", ") {
            text += between;
            value(PyTuple_GET_ITEM(args, index));
        }
        PyObject *key = nullptr, *item = nullptr;
        for (Py_ssize_t position = 0; PyDict_Next(kwargs, &position, &key, &item) != 0; between = ", ") {
            text += between;
            string(key);
            text += "=";
            value(item);
        }
        text += *between == '(' ? "()" : ")";
    }

    void value(PyObject* value) {
        if (value == Py_None) {
            text += "None";
        } else if (PyBool_Check(value)) {
            text += value == Py_True ? "True" : "False";
        } else if (THPVariable_Check(value)) {
            tensor(value);
        } else if (PyLong_CheckExact(value)) {
            integer(value);
        } else if (PyFloat_CheckExact(value)) {
            number(PyFloat_AS_DOUBLE(value));
        } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
            items(value);
        } else {
            rare(value);
        }
    }

    std::string text;

   private:
    void string(PyObject* value) {
        Py_ssize_t size = 0;
        if (const char* content = PyUnicode_AsUTF8AndSize(value, &size)) {
            text.append(content, static_cast<size_t>(size));
            return;
        }
        PyErr_Clear();  // half of a character of UTF-16
        const auto content = py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass"));
        if (!content) throw py::error_already_set();
        text += std::string(content);
    }

    void rare(PyObject* value) {
        const auto said = py::reinterpret_steal<py::object>(PyObject_CallOneArg(other_, value));
        if (!said) throw py::error_already_set();
        string(said.ptr());
    }

    void tensor(PyObject* value) {
        std::optional<TensorFacts> facts;
        try {
            facts.emplace(THPVariable_Unpack(value));
        } catch (const std::exception&) {  // one that stands for others and cannot say
        }
        if (facts && facts->has_sizes())
            text += facts->text();
        else
            rare(value);
    }

    void integer(PyObject* value) {
        int overflow = 0;
        const auto number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0)
            rare(value);
        else
            text += std::to_string(number);
    }

    void number(double value) {
        char* said = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
        if (said == nullptr) throw py::error_already_set();
        text += said;
        PyMem_Free(said);
    }

    void items(PyObject* value) {
        const bool is_list = PyList_CheckExact(value);
        const auto size = PySequence_Fast_GET_SIZE(value);
        text += is_list ? "[" : "(";
        for (Py_ssize_t index = 0; index < std::min(size, most_items_); ++index) {
            if (index > 0) text += ", ";
            this->value(PySequence_Fast_GET_ITEM(value, index));
        }
        if (size > most_items_) text += ", ...";
        text += is_list ? "]" : ")";
    }

    PyObject* other_;
    Py_ssize_t most_items_;
};

py::object& other_values() {
    static auto* made = new py::object();
    return *made;
}

Py_ssize_t most_items = 0;

py::str to_python(const std::string& text) {
    auto* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(made);
}

}  // namespace

void bind_texts(py::module_& module) {
    module.def("describe_values", [](py::object other, Py_ssize_t items) {
        other_values() = std::move(other), most_items = items;
    }, py::arg("other"), py::arg("items"), "How brief and brief_call are to write: other(value) for what is rare, and at most so many items of a list.");
    module.def("brief", [](const py::object& value) {
        Writer writer(other_values().ptr(), most_items);
        writer.value(value.ptr());
        return to_python(writer.text);
    }, py::arg("value"), "A value on one line.");
    module.def("brief_call", [](const py::tuple& args, const py::dict& kwargs) {
        Writer writer(other_values().ptr(), most_items);
        writer.call(args.ptr(), kwargs.ptr());
        return to_python(writer.text);
    }, py::arg("args"), py::arg("kwargs"), "The arguments of a call on one line.");
}

}  // namespace op_tools
