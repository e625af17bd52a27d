// dicp._runtime: compiled graphs as Python calls them. What is added to a Plan is described in src/dicp/vendor/HostGraph/program.py.
#include <ATen/ScalarOps.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "plan.h"

namespace py = pybind11;

namespace dicp {
namespace {

using Kind = OutputSlot::Kind;
using GivenSlot = std::tuple<int, int, int, int, std::optional<at::ScalarType>>;
using GivenResult = std::tuple<int, int, int, int, at::ScalarType>;

/// A list some of whose elements are filled in at each call: those are None or 0 so far.
c10::IValue list_with_gaps(const py::handle& given, const c10::TypePtr& type) {
    const auto element = type->expectRef<c10::ListType>().getElementType();
    c10::impl::GenericList list(element);
    for (const auto& item : given)
        list.push_back(item.is_none() && element->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor())
                                                                                      : torch::jit::toIValue(item, element));
    return list;
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
    return type->kind() == c10::TypeKind::OptionalType ? type->expectRef<c10::OptionalType>().getElementType() : type;
}

/// A number where the schema has a tensor takes part in the promotion of types as a number does.
c10::IValue constant_of(const py::handle& given, const c10::Argument& argument) {
    const auto type = without_optional(argument.type());
    if (type->kind() != c10::TypeKind::TensorType || given.is_none() || THPVariable_Check(given.ptr()))
        return torch::jit::toIValue(given, argument.type(), argument.N());
    at::Tensor number = at::scalar_to_tensor(torch::jit::toIValue(given, c10::NumberType::get()).toScalar());
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
}

void add_call(Plan& plan, const std::string& name, const std::string& overload, const py::list& constants, const std::vector<GivenSlot>& slots,
              const std::vector<GivenResult>& results) {
    AtenCall call(name, overload);
    for (const auto& [argument, position, value, rank, dtype] : slots) call.slots.push_back({argument, position, value, rank, dtype});
    for (const auto& [result, position, value, rank, dtype] : results) call.results.push_back({result, position, value, rank, dtype});
    const auto& arguments = call.schema().arguments();
    TORCH_CHECK(constants.size() == arguments.size(), call.name(), " has ", arguments.size(), " arguments; ", constants.size(), " were given");
    for (size_t i = 0; i < arguments.size(); ++i) {
        bool whole = false, part = false;
        for (const auto& slot : call.slots)
            if (slot.argument == static_cast<int>(i)) (slot.position < 0 ? whole : part) = true;
        if (whole)
            call.constants.emplace_back();
        else if (part)
            call.constants.push_back(list_with_gaps(constants[i], without_optional(arguments[i].type())));
        else
            call.constants.push_back(constant_of(constants[i], arguments[i]));
    }
    plan.calls.push_back(std::move(call));
}

py::object to_python(Result& result) {
    switch (result.kind) {
        case Kind::none: return py::none();
        case Kind::size: return py::int_(result.number);
        default: return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(result.tensor)));
    }
}

/// The arguments one by one, or one list of them, which is emptied.
py::list run(Plan& plan, const py::args& args) {
    std::vector<Argument> arguments;
    const bool boxed = args.size() == 1 && PyList_Check(args[0].ptr());
    const py::handle given = boxed ? args[0] : py::handle(args);
    const auto count = PySequence_Fast_GET_SIZE(given.ptr());
    arguments.resize(count);
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(given.ptr(), i);
        if (THPVariable_Check(item)) {
            arguments[i].tensor = THPVariable_Unpack(item);
        } else if (PyLong_Check(item)) {
            arguments[i].number = PyLong_AsLongLong(item);
            if (arguments[i].number == -1 && PyErr_Occurred()) throw py::error_already_set();
        }
    }
    if (boxed && PyList_SetSlice(given.ptr(), 0, count, nullptr) < 0) throw py::error_already_set();
    std::vector<Result> results;
    {
        const py::gil_scoped_release released;
        results = plan.run(arguments);
        arguments.clear();
    }
    py::list list(results.size());
    for (size_t i = 0; i < results.size(); ++i) list[i] = to_python(results[i]);
    return list;
}

}  // namespace
}  // namespace dicp

PYBIND11_MODULE(_runtime, module) {
    using dicp::Plan;
    py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan", "A compiled graph that is ready to run, once `finish` was called.")
        .def(py::init([](const std::string& path, const at::Device& device, int arguments, int values) {
            auto plan = std::make_shared<Plan>(path);
            plan->device = device;
            plan->arguments = arguments;
            plan->values = values;
            return plan;
        }))
        .def("add_input", [](Plan& plan, int place, at::ScalarType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                             bool written) { plan.inputs.push_back({place, dtype, std::move(sizes), std::move(strides), written}); })
        .def("add_size", [](Plan& plan, int place) { plan.sizes.push_back(place); })
        .def("add_constant", [](Plan& plan, const at::Tensor& tensor) { plan.constants.push_back(tensor.detach()); })
        .def("add_allocation", [](Plan& plan, int value, int rank, at::ScalarType dtype) { plan.allocations.push_back({value, rank, dtype}); })
        .def("add_call", &dicp::add_call)
        .def("add_whole_output", [](Plan& plan, int value) { plan.outputs.push_back({dicp::Kind::whole, value, 0, at::kByte}); })
        .def("add_view_output", [](Plan& plan, int value, int rank, at::ScalarType dtype) { plan.outputs.push_back({dicp::Kind::view, value, rank, dtype}); })
        .def("add_size_output", [](Plan& plan) { plan.outputs.push_back({dicp::Kind::size, 0, 0, at::kByte}); })
        .def("add_none_output", [](Plan& plan) { plan.outputs.push_back({dicp::Kind::none, 0, 0, at::kByte}); })
        .def("add_weight", [](Plan& plan, int value) { plan.weights.push_back({value}); })
        .def("finish", [](const std::shared_ptr<Plan>& plan) {
            plan->finish();
            return plan;
        })
        .def("__call__", &dicp::run)
        .def_property_readonly("_boxed_call", [](const Plan&) { return true; });
}
