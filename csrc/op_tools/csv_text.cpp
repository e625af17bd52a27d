// Rows as lines of a CSV file, as Python's csv module writes them: a cell is quoted where it must be.
#include <cstring>

#include "python_call.h"

namespace op_tools {
namespace {

void write_quoted(std::string& text, const char* content, size_t size) {
    text += '"';
    for (size_t index = 0; index < size; ++index) {
        if (content[index] == '"') text += '"';
        text += content[index];
    }
    text += '"';
}

void write_string(std::string& text, PyObject* value) {
    Py_ssize_t size = 0;
    const char* content = PyUnicode_AsUTF8AndSize(value, &size);
    if (content == nullptr) throw py::error_already_set();
    const auto length = static_cast<size_t>(size);
    const auto has = [&](char special) { return std::memchr(content, special, length) != nullptr; };
    if (has(',') || has('"') || has('\n') || has('\r'))
        write_quoted(text, content, length);
    else
        text.append(content, length);
}

void write_cell(std::string& text, PyObject* value) {
    if (value == nullptr || value == Py_None) return;
    if (PyUnicode_CheckExact(value)) return write_string(text, value);
    if (PyFloat_CheckExact(value)) {
        char* number = PyOS_double_to_string(PyFloat_AS_DOUBLE(value), 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
        if (number == nullptr) throw py::error_already_set();
        text += number;
        PyMem_Free(number);
        return;
    }
    const auto said = py::reinterpret_steal<py::object>(PyObject_Str(value));
    if (!said) throw py::error_already_set();
    write_string(text, said.ptr());
}

py::bytes csv_lines(const py::list& rows, const py::tuple& columns) {
    std::string text;
    for (const auto mapping : rows) {
        const py::dict row(py::reinterpret_borrow<py::object>(mapping));  // a copy of what is none
        const char* between = "";
        for (const auto column : columns) {
            text += between;
            write_cell(text, PyDict_GetItemWithError(row.ptr(), column.ptr()));
            if (PyErr_Occurred() != nullptr) throw py::error_already_set();
            between = ",";
        }
        text += '\n';
    }
    return py::bytes(text);
}

}  // namespace

void bind_csv(py::module_& module) {
    module.def("csv_lines", &csv_lines, py::arg("rows"), py::arg("columns"), "The rows' values of these columns, a line for each row.");
}

}  // namespace op_tools
