#include "vendor.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include "../adaptor/adaptor.h"
#include "../diopirt/runtime_table.h"
#include "deferred_errors.h"

namespace dipu {
namespace {

struct Choice {
    std::mutex mutex;
    std::string rules, path, problem = "no vendor was chosen: import torch_dipu first";
    std::atomic<const Vendor*> loaded{nullptr};
};
Choice& choice() {
    static auto* instance = new Choice;
    return *instance;
}

// A vendor's operators look up the runtime functions of DIOPI in the process' global scope: libdiopirt goes there, alone.
void publish_runtime_functions() {
    Dl_info info{};
    if (dladdr(&diopi_runtime, &info) == 0 || !info.dli_fname || !dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL))
        TORCH_CHECK(false, "dipu: libdiopirt.so, which holds the runtime functions for vendor libraries, cannot be found: ", dlerror());
}

void* open_library(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(handle, "dipu: cannot load the vendor library ", path, ": ", dlerror(),
                ". Expected a shared library for this machine that exports ", DIPU_VENDOR_ENTRY,
                "; check DIPU_DEVICE, or unset it to use what is installed.");
    return handle;
}

}  // namespace

Vendor load(const std::string& path) {
    publish_runtime_functions();
    void* handle = open_library(path);
    auto entry = reinterpret_cast<dipuGetVendorTable_t>(dlsym(handle, DIPU_VENDOR_ENTRY));
    TORCH_CHECK(entry, "dipu: ", path, " is not a vendor library: it has no symbol ", DIPU_VENDOR_ENTRY,
                ". See include/dipu/vendor.h.");
    const dipuVendorTable* table = entry();
    TORCH_CHECK(table && table->size >= offsetof(dipuVendorTable, name), "dipu: ", path, " returned no vendor table");
    TORCH_CHECK((table->abi >> 16) == DIPU_VENDOR_ABI_MAJOR, "dipu: the vendor library ", path, " speaks version ", table->abi >> 16, ".",
                table->abi & 0xffff, " of the vendor interface, this torch_dipu speaks ", DIPU_VENDOR_ABI_MAJOR, ".",
                DIPU_VENDOR_ABI_MINOR, ". Rebuild the library against this include/dipu/vendor.h, or install the matching torch_dipu.");
    TORCH_CHECK(table->size > offsetof(dipuVendorTable, event_elapsed), "dipu: the vendor table of ", path, " is ", table->size,
                " bytes long and ends before its mandatory entries. Rebuild it against include/dipu/vendor.h.");
    // the mandatory entries are function pointers, one after the other
    const auto* first = reinterpret_cast<void* const*>(&table->last_error);
    const auto* last = reinterpret_cast<void* const*>(&table->event_elapsed);
    TORCH_CHECK(std::find(first, last + 1, nullptr) == last + 1, "dipu: the vendor table of ", path,
                " lacks a mandatory entry: number ", std::find(first, last + 1, nullptr) - first + 1, " of ", last + 1 - first,
                ", counted from last_error in include/dipu/vendor.h.");
    Vendor vendor;
    std::memcpy(&vendor.table_, table, std::min(table->size, sizeof(dipuVendorTable)));
    vendor.library_ = path;
    vendor.ask_alias_device();
    vendor.operators_ = vendor.table_.operator_library ? open_library(vendor.table_.operator_library) : handle;
    return vendor;
}

void* Vendor::symbol(const char* name) const {
    if (adapted_) return diopi_adaptor_symbol(name);
    return operators_ ? dlsym(operators_, name) : nullptr;
}

void Vendor::ask_alias_device() {
    if (!table_.alias_device_type) return;
    int32_t code = 0;
    if (table_.alias_device_type(&code) != DIPU_SUCCESS) {
        const char* message = table_.last_error();
        TORCH_CHECK(false, "dipu: asking the vendor whose kernels run over its memory failed: ",
                    message && *message ? message : "no reason given by the vendor");
    }
    switch (code) {  // the codes of DLPack
        case 1: alias_device_ = c10::DeviceType::CPU; break;
        case 2: alias_device_ = c10::DeviceType::CUDA; break;
        case 14: alias_device_ = c10::DeviceType::XPU; break;
        default:
            TORCH_CHECK(false, "dipu: ", library_, " says that kernels of device type ", code,
                        " (a code of DLPack) run over its memory; torch_dipu knows 1 (CPU), 2 (CUDA) and 14 (XPU)");
    }
}

void Vendor::adapt(const std::string& rules) {
    diopi_adaptor_set_lookup([](void* library, const char* name) { return dlsym(library, name); }, operators_);
    diopi_adaptor_set_memory(&table_);
    TORCH_CHECK(diopi_adaptor_configure(rules.c_str()) == 0, "dipu: the adaptor's rules are wrong: ", diopi_adaptor_last_error());
    adapted_ = true;
}

void choose_rules(const std::string& rules) {
    TORCH_CHECK(!vendor_loaded(), "dipu: the vendor is in use; the adaptor's rules can only be given before");
    choice().rules = rules;
}

std::vector<diopiAdaptorCost> adaptor_costs() {
    std::vector<diopiAdaptorCost> costs;
    if (vendor_loaded() && !choice().rules.empty())
        diopi_adaptor_report(
            [](void* owner, const diopiAdaptorCost* cost) { static_cast<std::vector<diopiAdaptorCost>*>(owner)->push_back(*cost); }, &costs);
    return costs;
}

std::string operator_error() {
    if (!choice().rules.empty())
        if (const char* text = diopi_adaptor_last_error(); text && *text) return text;
    using LastError = const char* (*)();
    static auto last_error = reinterpret_cast<LastError>(vendor().symbol("diopiGetLastErrorString"));
    const char* text = last_error ? last_error() : nullptr;
    return text ? text : "";
}

namespace {

std::atomic<uint64_t> features_told_last{0};

// As the vendor's thread-local text must be read before another call of it.
std::string reason(const dipuVendorTable& table) {
    const char* message = table.last_error();
    return message && *message ? message : "no reason given by the vendor";
}

}  // namespace

bool Vendor::has(dipuFeature feature) const {
    uint64_t bits = 0;
    if (C10_UNLIKELY(table_.features(&bits) != DIPU_SUCCESS))
        TORCH_CHECK(false, "dipu: asking for the vendor's features failed: ", reason(table_));
    if (C10_UNLIKELY(bits != features_told_last.load(std::memory_order_relaxed))) features_told_last = bits;
    return among(bits, feature);
}

bool Vendor::has_noexcept(dipuFeature feature) const noexcept {
    uint64_t bits = 0;
    if (!check_later(table_.features(&bits), "asking for the vendor's features")) bits = features_told_last;
    return among(bits, feature);
}

bool Vendor::among(uint64_t bits, dipuFeature feature) const {
    if ((bits & feature) == 0) return false;
    if ((feature & (DIPU_FEATURE_ALIAS | DIPU_FEATURE_ALIAS_ATTENTION)) == 0) return true;
    // The fallback hands calls to the CPU's kernels only: memory that others reach is copied.
    return alias_device_ == c10::DeviceType::CPU && table_.host_alias && table_.adopt && table_.release;
}

void choose_vendor(const std::string& path, const std::string& problem) {
    auto& chosen = choice();
    std::lock_guard<std::mutex> lock(chosen.mutex);
    TORCH_CHECK(!chosen.loaded || chosen.path == path, "dipu: the vendor ", chosen.path, " is in use; it can only be changed in a new process");
    chosen.path = path;
    chosen.problem = problem;
}

const Vendor& vendor() {
    auto& chosen = choice();
    if (const Vendor* loaded = chosen.loaded.load(std::memory_order_acquire)) return *loaded;
    std::lock_guard<std::mutex> lock(chosen.mutex);
    if (!chosen.loaded) {
        TORCH_CHECK(!chosen.path.empty(), "dipu: ", chosen.problem);
        auto loaded = std::make_unique<Vendor>(load(chosen.path));
        if (!chosen.rules.empty()) loaded->adapt(chosen.rules);
        chosen.loaded = loaded.release();
    }
    return *chosen.loaded;
}

bool vendor_loaded() { return choice().loaded != nullptr; }

void check(int status, const char* doing) {
    if (C10_LIKELY(status == DIPU_SUCCESS)) return;
    TORCH_CHECK(false, "dipu: ", doing, " failed: ", reason(*vendor().table()));
}

}  // namespace dipu
