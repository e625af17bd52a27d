// torch_dipu._C: kernels that others compiled, loaded and launched through the vendor's table.
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <c10/util/Exception.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "../runtime/deferred_errors.h"
#include "../runtime/device.h"
#include "bindings.h"

namespace py = pybind11;

namespace dipu_python {
namespace {

using Size = std::array<uint32_t, 3>;

dipuDim3 dim3(const Size& size) { return {size[0], size[1], size[2]}; }

const dipu::Vendor& vendor_with_kernels() {
    const auto& vendor = dipu::vendor();
    TORCH_CHECK_NOT_IMPLEMENTED(vendor->module_load && vendor->module_unload && vendor->module_function && vendor->kernel_launch,
                                "dipu: the vendor ", vendor->name, " loads no kernels that others compiled (module_load in include/dipu/vendor.h)");
    return vendor;
}

uintptr_t load_module(int device, const std::optional<std::string>& path, const std::optional<py::bytes>& image) {
    const auto& vendor = vendor_with_kernels();
    dipu::check_device(device);
    std::string_view bytes = image ? std::string_view(*image) : std::string_view();
    void* module = nullptr;
    py::gil_scoped_release released;
    dipu::OnDevice here(device);
    const char* file = path ? path->c_str() : nullptr;
    const std::string doing = path ? "loading the module " + *path : "loading a module from memory";
    dipu::check(vendor->module_load(device, file, bytes.data(), bytes.size(), &module), doing.c_str());
    return reinterpret_cast<uintptr_t>(module);
}

// Called when Python's object goes: nothing may be raised.
void unload_module(uintptr_t module) {
    py::gil_scoped_release released;
    dipu::check_later(dipu::vendor()->module_unload(reinterpret_cast<void*>(module)), "unloading a module");
}

uintptr_t function_of_module(uintptr_t module, const std::string& name) {
    void* function = nullptr;
    const std::string doing = "looking up the kernel " + name;
    dipu::check(vendor_with_kernels()->module_function(reinterpret_cast<void*>(module), name.c_str(), &function), doing.c_str());
    return reinterpret_cast<uintptr_t>(function);
}

// The values of the arguments one after the other, `sizes` long each.
void launch(int device, int64_t stream, uintptr_t function, const std::string& name, const Size& grid, const Size& block, size_t shared_memory,
            const py::bytes& values, const std::vector<size_t>& sizes) {
    const auto& vendor = vendor_with_kernels();
    const std::string_view bytes = values;
    std::vector<void*> arguments;
    size_t place = 0;
    for (const size_t size : sizes) {
        TORCH_CHECK(size > 0 && place + size <= bytes.size(), "dipu: the arguments of the kernel ", name, " are longer than their values");
        arguments.push_back(const_cast<char*>(bytes.data()) + place);
        place += size;
    }
    dipuKernelLaunch description{sizeof(dipuKernelLaunch), dipu::stream_handle(device, stream), name.c_str(), dim3(grid), dim3(block),
                                 shared_memory, static_cast<uint32_t>(sizes.size()), arguments.data(), sizes.data()};
    const std::string doing = "launching the kernel " + name;
    py::gil_scoped_release released;
    dipu::OnDevice here(device);
    dipu::check(vendor->kernel_launch(reinterpret_cast<void*>(function), &description), doing.c_str());
}

}  // namespace

void bind_kernels(py::module_& m) {
    m.def("module_load", &load_module);
    m.def("module_unload", &unload_module);
    m.def("module_function", &function_of_module);
    m.def("kernel_launch", &launch);
    m.def("has_kernels", [] {
        const auto& vendor = dipu::vendor();
        return vendor->module_load && vendor->module_unload && vendor->module_function && vendor->kernel_launch;
    });
    m.def("vendor_table", [] { return reinterpret_cast<uintptr_t>(dipu::vendor().table()); });
}

}  // namespace dipu_python
