// Entries of the vendor table: kernels that others compiled (PTX, cubin, fatbin), by the driver's interface. The driver is opened when it is first
// needed: without a card there is none.
#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "entries.h"

namespace dipu_vendor {
namespace {

// The functions of the driver that modules need.
struct Driver {
    decltype(&cuModuleLoad) module_load;
    decltype(&cuModuleLoadData) module_load_data;
    decltype(&cuModuleUnload) module_unload;
    decltype(&cuModuleGetFunction) module_get_function;
    decltype(&cuFuncSetAttribute) func_set_attribute;
    decltype(&cuLaunchKernel) launch_kernel;
    decltype(&cuGetErrorString) get_error_string;

    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) throw std::runtime_error(std::string("NVIDIA's driver cannot be opened: ") + dlerror());
        find(library, "cuModuleLoad", module_load);
        find(library, "cuModuleLoadData", module_load_data);
        find(library, "cuModuleUnload", module_unload);
        find(library, "cuModuleGetFunction", module_get_function);
        find(library, "cuFuncSetAttribute", func_set_attribute);
        find(library, "cuLaunchKernel", launch_kernel);
        find(library, "cuGetErrorString", get_error_string);
    }

   private:
    template <class Function>
    static void find(void* library, const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        if (!function) throw std::runtime_error(std::string("NVIDIA's driver has no function ") + name);
    }
};

const Driver& driver() {
    static const Driver instance;
    return instance;
}

int driver_status(CUresult result, const std::string& doing) {
    if (result == CUDA_SUCCESS) return DIPU_SUCCESS;
    const char* text = nullptr;
    driver().get_error_string(result, &text);
    set_error(doing + ": " + (text ? text : "an unknown error of the driver"));
    return result == CUDA_ERROR_OUT_OF_MEMORY ? DIPU_ERROR_MEMORY : DIPU_ERROR;
}

struct Module {
    CUmodule raw;
    int device;
};

struct Function {
    CUfunction raw;
    Module* module;
    std::string name;
};

// Functions live as long as the program: a module has few.
constexpr size_t kOrdinarySharedMemory = 48 << 10;

}  // namespace

int load_module(int device, const char* path, const void* image, size_t bytes, void** module) {
    return guarded([&] {
        const OnDevice here(device);
        if (const int status = status_of(here.status())) return status;
        (void)cudaFree(nullptr);  // makes the device's context
        CUmodule loaded = nullptr;
        // an image of PTX is a text: the driver wants its end
        const std::string text = path ? std::string() : std::string(static_cast<const char*>(image), bytes);
        const CUresult result = path ? driver().module_load(&loaded, path) : driver().module_load_data(&loaded, text.c_str());
        if (const int status = driver_status(result, path ? std::string("loading ") + path : "loading a module")) return status;
        *module = new Module{loaded, device};
        return static_cast<int>(DIPU_SUCCESS);
    });
}

// A queued launch outlives the unloading: the driver frees the code when nothing runs it, so what is queued is waited for.
int unload_module(void* module) {
    return guarded([&] {
        auto* old = static_cast<Module*>(module);
        const OnDevice here(old->device);
        (void)cudaDeviceSynchronize();
        const int status = driver_status(driver().module_unload(old->raw), "unloading a module");
        delete old;
        return status;
    });
}

int function_of_module(void* module, const char* name, void** function) {
    return guarded([&] {
        auto* owner = static_cast<Module*>(module);
        const OnDevice here(owner->device);
        CUfunction found = nullptr;
        if (const int status = driver_status(driver().module_get_function(&found, owner->raw, name), std::string("looking for the kernel ") + name))
            return status;
        *function = new Function{found, owner, name};
        return static_cast<int>(DIPU_SUCCESS);
    });
}

int launch_kernel(void* function, const dipuKernelLaunch* launch) {
    return guarded([&] {
        auto* kernel = static_cast<Function*>(function);
        auto* stream = static_cast<Stream*>(launch->stream);
        const OnDevice here(stream->device);
        const std::string doing = "launching the kernel " + kernel->name;
        if (launch->shared_memory > kOrdinarySharedMemory) {
            const CUresult allowed = driver().func_set_attribute(kernel->raw, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                                 static_cast<int>(launch->shared_memory));
            if (const int status = driver_status(allowed, doing)) return status;
        }
        const CUresult result = driver().launch_kernel(
            kernel->raw, launch->grid.x, launch->grid.y, launch->grid.z, launch->block.x, launch->block.y, launch->block.z,
            static_cast<unsigned>(launch->shared_memory), stream->raw, const_cast<void**>(launch->arguments), nullptr);
        return driver_status(result, doing);
    });
}

}  // namespace dipu_vendor
