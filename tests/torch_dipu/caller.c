/* A library that links nothing of torch_dipu: it finds what include/dipu/torch_dipu.h offers in the process. */
#include <dipu/torch_dipu.h>
#include <dlfcn.h>

static void* offered(const char* name) {
    void* library = dlopen("libtorch_dipu.so", RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

/* Scales `count` numbers on the current stream with the kernel of the module at `path`; 0, or the number of the step that failed. */
int scale(const char* path, void* numbers, float factor, unsigned count) {
    const dipuVendorTable* (*vendor)(void) = (const dipuVendorTable* (*)(void))offered("dipuTorchVendor");
    int (*device_of_thread)(int*) = (int (*)(int*))offered("dipuTorchCurrentDevice");
    int (*launch_on)(int, void*, const dipuKernelLaunch*) = (int (*)(int, void*, const dipuKernelLaunch*))offered("dipuTorchLaunch");
    if (!vendor || !device_of_thread || !launch_on) return 1;
    const dipuVendorTable* table = vendor();
    if (!table || table->size < sizeof(*table) || !table->module_load) return 2;
    int device = -1;
    if (device_of_thread(&device) != 0) return 3;
    void *module = NULL, *function = NULL;
    if (table->module_load(device, path, NULL, 0, &module) || table->module_function(module, "scale", &function)) return 4;
    void* arguments[] = {&numbers, &factor};
    const size_t sizes[] = {sizeof(numbers), sizeof(factor)};
    const dipuKernelLaunch launch = {sizeof(launch), NULL, "scale", {count, 1, 1}, {1, 1, 1}, 0, 2, arguments, sizes};
    if (launch_on(-1, function, &launch)) return 5;
    return table->module_unload(module) ? 6 : 0; /* the queued launch still needs it */
}

void* stream(int device) {
    int (*current)(int, void**) = (int (*)(int, void**))offered("dipuTorchCurrentStream");
    void* found = NULL;
    return current && current(device, &found) == 0 ? found : NULL;
}

const char* problem(void) {
    const char* (*last_error)(void) = (const char* (*)(void))offered("dipuTorchLastError");
    return last_error ? last_error() : "";
}
