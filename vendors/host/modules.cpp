// Entries of the vendor table: kernels in shared libraries (include/dipu/host_kernel.h).
#include <dipu/host_kernel.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "device_memory.h"
#include "entries.h"

namespace dipu_vendor {
namespace {

struct Module;

struct Kernel {
    Module* module;
    dipuHostKernel call;
    std::string name;
};

// Queued launches own their module too: it may be unloaded while they wait.
struct Module : std::enable_shared_from_this<Module> {
    explicit Module(void* handle) : handle(handle) {}
    ~Module() { dlclose(handle); }
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    void* const handle;
    std::mutex mutex;
    std::map<std::string, Kernel> kernels;  // their addresses are what module_function gives
};
using ModulePointer = std::shared_ptr<Module>;

std::string loader_error() {
    const char* text = dlerror();
    return text ? text : "no reason given";
}

void* open_file(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) throw std::runtime_error("the module cannot be loaded: " + loader_error());
    return handle;
}

void* open_image(const void* image, size_t bytes) {
    const int file = memfd_create("dipu_module", MFD_CLOEXEC);
    if (file < 0) throw std::runtime_error(std::string("no memory file for the module: ") + std::strerror(errno));
    struct Closed {
        int file;
        ~Closed() { close(file); }
    } closed{file};
    const auto* data = static_cast<const char*>(image);
    for (size_t done = 0; done < bytes;) {
        const ssize_t written = write(file, data + done, bytes - done);
        if (written <= 0) throw std::runtime_error(std::string("the module cannot be written to memory: ") + std::strerror(errno));
        done += static_cast<size_t>(written);
    }
    return open_file(("/proc/self/fd/" + std::to_string(file)).c_str());
}

constexpr size_t kArgumentAlignment = 16;

// A launch's own copy of its arguments.
struct Arguments {
    explicit Arguments(const dipuKernelLaunch& launch) {
        size_t total = 0;
        std::vector<size_t> places;
        for (uint32_t i = 0; i < launch.argument_count; ++i) {
            if (!launch.arguments[i]) throw std::invalid_argument("argument " + std::to_string(i) + " of the kernel is NULL");
            places.push_back(total);
            total += (launch.argument_sizes[i] + kArgumentAlignment - 1) / kArgumentAlignment * kArgumentAlignment;
        }
        block.resize(total / kArgumentAlignment);
        for (uint32_t i = 0; i < launch.argument_count; ++i) {
            pointers.push_back(block.data()->bytes + places[i]);
            std::memcpy(pointers.back(), launch.arguments[i], launch.argument_sizes[i]);
        }
    }
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    struct alignas(kArgumentAlignment) Unit {
        char bytes[kArgumentAlignment];
    };
    std::vector<Unit> block;
    std::vector<void*> pointers;
};

void* alias_of(const void* pointer) { return untag(pointer); }

void call_kernel(const Kernel& kernel, dipuDim3 grid, dipuDim3 block, size_t shared_bytes, const Arguments& arguments) {
    constexpr size_t kAlignment = 64;
    std::unique_ptr<void, decltype(&std::free)> shared(nullptr, &std::free);
    if (shared_bytes > 0) {
        shared.reset(std::aligned_alloc(kAlignment, (shared_bytes + kAlignment - 1) / kAlignment * kAlignment));
        if (!shared) throw std::runtime_error("no host memory for " + std::to_string(shared_bytes) + " bytes of shared memory");
    }
    char error[1024] = "";
    const dipuHostKernelCall call{sizeof(dipuHostKernelCall), grid, block, shared.get(), static_cast<uint32_t>(arguments.pointers.size()),
                                  arguments.pointers.data(), alias_of, error, sizeof(error)};
    if (kernel.call(&call) != 0) throw std::runtime_error(*error ? error : "the kernel reports an error and no reason");
}

bool empty(dipuDim3 size) { return size.x == 0 || size.y == 0 || size.z == 0; }

int refuse(const std::string& message) {
    set_error(message);
    return DIPU_ERROR_VALUE;
}

}  // namespace

int load_module(int, const char* path, const void* image, size_t bytes, void** module) {
    return guarded([&] {
        if (!path && (!image || bytes == 0)) return refuse("a module is made of a file or of an image; neither was given");
        *module = new ModulePointer(std::make_shared<Module>(path ? open_file(path) : open_image(image, bytes)));
        return static_cast<int>(DIPU_SUCCESS);
    });
}

int unload_module(void* module) {
    return guarded([&] {
        delete static_cast<ModulePointer*>(module);
        return DIPU_SUCCESS;
    });
}

int function_of_module(void* module, const char* name, void** function) {
    return guarded([&] {
        Module& found = **static_cast<ModulePointer*>(module);
        void* symbol = dlsym(found.handle, name);
        if (!symbol) return refuse(std::string("the module has no kernel '") + name + "'");
        std::lock_guard<std::mutex> lock(found.mutex);
        *function = &found.kernels.try_emplace(name, Kernel{&found, reinterpret_cast<dipuHostKernel>(symbol), name}).first->second;
        return static_cast<int>(DIPU_SUCCESS);
    });
}

int launch_kernel(void* function, const dipuKernelLaunch* launch) {
    return guarded([&] {
        auto& kernel = *static_cast<Kernel*>(function);
        const std::string name = launch->name ? launch->name : kernel.name;
        if (launch->size < sizeof(*launch)) return refuse("the launch of " + name + " is described in " + std::to_string(launch->size) + " bytes");
        if (empty(launch->grid) || empty(launch->block)) return refuse("the launch of " + name + " has an empty grid or block");
        auto body = [&kernel, module = kernel.module->shared_from_this(), grid = launch->grid, block = launch->block,
                     shared = launch->shared_memory, arguments = std::make_shared<Arguments>(*launch)] {
            call_kernel(kernel, grid, block, shared, *arguments);
        };
        run_in_order(static_cast<Stream*>(launch->stream), ("kernel " + name).c_str(), std::move(body));
        return static_cast<int>(DIPU_SUCCESS);
    });
}

}  // namespace dipu_vendor
