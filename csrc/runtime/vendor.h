// The chip behind the device: its function table and its operators, loaded at run time on first use.
#pragma once
#include <c10/core/DeviceType.h>
#include <c10/macros/Export.h>
#include <dipu/vendor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../adaptor/adaptor.h"

#define DIPU_API __attribute__((visibility("default")))

namespace dipu {

class DIPU_API Vendor {
   public:
    const dipuVendorTable* operator->() const { return &table_; }
    const std::string& library() const { return library_; }
    // An operator by its C name; nullptr if the vendor has none.
    void* symbol(const char* name) const;
    // Raises the vendor's message if it cannot tell; where nothing may be raised, `has_noexcept` takes what it told last.
    bool has(dipuFeature feature) const;
    bool has_noexcept(dipuFeature feature) const noexcept;
    // Whose kernels run over aliases of device memory.
    c10::DeviceType alias_device() const { return alias_device_; }
    // The whole table, for other libraries of the process.
    const dipuVendorTable* table() const { return &table_; }

   private:
    friend DIPU_API const Vendor& vendor();
    void adapt(const std::string& rules);
    void ask_alias_device();
    bool among(uint64_t bits, dipuFeature feature) const;
    friend Vendor load(const std::string& path);

    dipuVendorTable table_{};  // entries the vendor was built without are NULL
    std::string library_;
    c10::DeviceType alias_device_ = c10::DeviceType::CPU;
    void* operators_ = nullptr;
    bool adapted_ = false;  // the adaptor's rules stand in front of the operators
};

// Says which library to load: a path, or the reason why there is none (raised on first use, so that `import torch` works).
DIPU_API void choose_vendor(const std::string& path, const std::string& problem);
// Rules of the adaptor (diopi.adaptor makes them of convert_config.yaml), to be used with the vendor; before its first use.
DIPU_API void choose_rules(const std::string& rules);
// What the rules cost so far, for each operator that was called through the adaptor; empty without rules.
DIPU_API std::vector<diopiAdaptorCost> adaptor_costs();
// The vendor; loads it on first use, raises what is wrong with it every time.
DIPU_API const Vendor& vendor();
DIPU_API bool vendor_loaded();

// Why the last operator of this thread failed, as the adaptor or the vendor tells it; may be empty.
DIPU_API std::string operator_error();

// Raises the vendor's message if the call failed.
DIPU_API void check(int status, const char* doing);

}  // namespace dipu
