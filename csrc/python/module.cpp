// torch_dipu._C: what the Python side needs of the runtime.
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "../aten/alias.h"
#include "../aten/record.h"
#include "../aten/settings.h"
#include "../runtime/generator.h"
#include "../runtime/vendor.h"
#include "bindings.h"
#include "memory.h"

namespace dipu {
DIPU_API int register_direct_fallbacks();
}

namespace py = pybind11;
using dipu::vendor;

void bind_distributed(py::module_ module);

namespace {

py::object wrap(at::Tensor tensor) { return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor))); }
at::Tensor unwrap(const py::handle& object) {
    if (!THPVariable_Check(object.ptr())) throw py::type_error("expected a torch.Tensor");
    return THPVariable_Unpack(object.ptr());
}

// The settings of the vendor's own, if it lists them.
py::dict options() {
    py::dict values;
    char names[4096] = "", value[4096] = "";
    if (!vendor()->get_option || vendor()->get_option("options", names, sizeof(names)) != DIPU_SUCCESS) return values;
    const auto listed = py::str(names).attr("replace")(" ", "").attr("split")(",");
    for (const auto& name : listed) {
        dipu::check(vendor()->get_option(name.cast<std::string>().c_str(), value, sizeof(value)), "reading a vendor option");
        values[name] = std::string(value);
    }
    return values;
}

py::dict describe_vendor(const std::vector<std::string>& operators) {
    const auto& loaded = vendor();
    py::dict description;
    description["name"] = loaded->name;
    description["description"] = loaded->description;
    description["library"] = loaded.library();
    description["abi"] = std::to_string(loaded->abi >> 16) + "." + std::to_string(loaded->abi & 0xffff);
    description["devices"] = dipu::device_count();
    std::vector<std::string> features;
    if (loaded.has(DIPU_FEATURE_ALIAS)) features.emplace_back("alias");
    if (loaded.has(DIPU_FEATURE_ALIAS_ATTENTION)) features.emplace_back("alias-attention");
    if (loaded.has(DIPU_FEATURE_ASYNCHRONOUS)) features.emplace_back("asynchronous");
    if (loaded.has(DIPU_FEATURE_FLASH_ATTENTION)) features.emplace_back("flash-attention");
    if (loaded.has(DIPU_FEATURE_COUNTER_RANDOM)) features.emplace_back("counter-random");
    if (loaded.has(DIPU_FEATURE_WIDE_STATISTICS)) features.emplace_back("wide-statistics");
    description["features"] = features;
    int found = 0;
    for (const auto& name : operators) found += loaded.symbol(name.c_str()) != nullptr;
    description["operators"] = found;
    description["options"] = options();
    return description;
}

py::dict properties(int device) {
    const auto given = dipu::device_properties(device);
    py::dict result;
    result["name"] = std::string(given.name);
    result["total_memory"] = given.total_memory;
    result["multi_processor_count"] = given.compute_units;
    result["major"] = given.major;
    result["minor"] = given.minor;
    return result;
}

py::dict op_counts() {
    py::dict counts;
    for (const auto* record : dipu::op_records()) {
        const auto runs = [&](dipu::Way way) { return record->runs[static_cast<int>(way)].load(); };
        if (runs(dipu::Way::Diopi) + runs(dipu::Way::Alias) + runs(dipu::Way::Copy) == 0) continue;
        py::dict ways;
        ways["diopi"] = runs(dipu::Way::Diopi);
        ways["alias"] = runs(dipu::Way::Alias);
        ways["copy"] = runs(dipu::Way::Copy);
        const auto spent = [&](dipu::Way way) { return record->nanoseconds[static_cast<int>(way)].load(); };
        ways["diopi_ns"] = spent(dipu::Way::Diopi);
        ways["alias_ns"] = spent(dipu::Way::Alias);
        ways["copy_ns"] = spent(dipu::Way::Copy);
        ways["copied_bytes"] = record->bytes.load();
        py::dict asked;  // by the variable of the setting that sent calls to the fallback
        for (const auto who : {dipu::FallbackSetting::ForceList, dipu::FallbackSetting::KeepList, dipu::FallbackSetting::WithoutLibrary})
            if (const auto calls = record->by_setting[static_cast<int>(who)].load()) asked[dipu::variable_of(who)] = calls;
        ways["asked"] = asked;
        counts[py::str("aten::" + record->name)] = ways;
    }
    return counts;
}

std::string option(const std::string& name) {
    TORCH_CHECK(vendor()->get_option, "dipu: this vendor has no options");
    char value[4096] = "";
    dipu::check(vendor()->get_option(name.c_str(), value, sizeof(value)), "reading a vendor option");
    return value;
}

void set_option(const std::string& name, const std::string& value) {
    TORCH_CHECK(vendor()->set_option, "dipu: this vendor has no options");
    for (int device = 0; device < dipu::device_count(); ++device) dipu::synchronize_device(device);
    dipu::check(vendor()->set_option(name.c_str(), value.c_str()), "setting a vendor option");
}

py::list adaptor_costs() {
    py::list rows;
    for (const diopiAdaptorCost& cost : dipu::adaptor_costs()) {
        py::dict row;
        row["name"] = cost.name;
        row["calls"] = cost.calls;
        row["composed"] = cost.composed;
        row["conversions"] = cost.conversions;
        row["on_host"] = cost.on_host;
        row["bytes"] = cost.bytes;
        row["nanoseconds"] = cost.nanoseconds;
        row["call_nanoseconds"] = cost.call_nanoseconds;
        row["errors"] = cost.errors;
        rows.append(row);
    }
    return rows;
}

// Python tells of every change of os.environ before it happens; a wrong value makes the assignment raise.
int follow_environment(const char* event, PyObject* arguments, void*) {
    const bool put = std::strcmp(event, "os.putenv") == 0;
    if (!put && std::strcmp(event, "os.unsetenv") != 0) return 0;
    const char *name = nullptr, *value = "";
    if (!(put ? PyArg_ParseTuple(arguments, "yy", &name, &value) : PyArg_ParseTuple(arguments, "y", &name))) {
        PyErr_Clear();
        return 0;
    }
    if (std::strncmp(name, "DIPU_", 5) != 0) return 0;
    try {
        dipu::set_setting(name, value);
        return 0;
    } catch (const c10::Error& error) {
        PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
        return -1;
    }
}

}  // namespace

PYBIND11_MODULE(_C, m) {
    // Of this module's functions alone: torch has a translator of its own, which knows its kinds of errors.
    py::register_local_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const c10::ValueError& failure) {
            PyErr_SetString(PyExc_ValueError, failure.what_without_backtrace());
        } catch (const c10::NotImplementedError& failure) {
            PyErr_SetString(PyExc_NotImplementedError, failure.what_without_backtrace());
        } catch (const c10::Error& failure) {
            PyErr_SetString(PyExc_RuntimeError, failure.what_without_backtrace());
        }
    });
    m.def("choose_vendor", &dipu::choose_vendor, py::arg("path"), py::arg("problem"));
    m.def("choose_rules", &dipu::choose_rules);
    m.def("adaptor_costs", &adaptor_costs);
    m.def("describe_vendor", &describe_vendor);
    m.def("option", &option);
    m.def("set_option", &set_option, py::call_guard<py::gil_scoped_release>());
    m.def("register_direct_fallbacks", &dipu::register_direct_fallbacks);

    dipu_python::bind_streams(m);
    dipu_python::bind_kernels(m);

    m.def("device_count", &dipu::device_count);
    m.def("current_device", &dipu::current_device);
    m.def("set_device", &dipu::set_device);
    m.def("exchange_device", &dipu::exchange_device);
    m.def("check_device", &dipu::check_device);
    m.def("synchronize", &dipu::synchronize_device, py::call_guard<py::gil_scoped_release>());
    m.def("properties", &properties);
    m.def("default_generator", [](int device) {
        return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(dipu::default_generator(device)));
    });

    bind_memory(m);

    m.def("read_settings", &dipu::read_settings);
    m.def("follow_environment", [] {
        if (PySys_AddAuditHook(follow_environment, nullptr) != 0) throw py::error_already_set();
    });
    m.def("set_timing", [](bool on) { dipu::settings.timing = on; });
    m.def("op_counts", &op_counts);
    m.def("reset_op_counts", &dipu::reset_op_records);
    m.def("has_alias", [] { return vendor().has(DIPU_FEATURE_ALIAS); });
    m.def("bind_distributed", [m] { bind_distributed(m); });
    m.def("cpu_alias", [](const py::handle& tensor) { return wrap(dipu::cpu_alias(unwrap(tensor))); });
}
