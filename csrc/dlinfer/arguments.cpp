#include "arguments.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dipu/vendor.h>
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace py = pybind11;

namespace dlinfer {
namespace {

const dipuVendorTable* found_chip() {
    py::gil_scoped_acquire held;
    // As long as this version's: entries that the vendor was built without are NULL.
    return reinterpret_cast<const dipuVendorTable*>(py::module_::import("torch_dipu._C").attr("vendor_table")().cast<uintptr_t>());
}

/// The function table of the chip behind `dipu`, as the device uses it.
const dipuVendorTable& chip() {
    // No static of a function: its lock and the GIL might be taken in both orders.
    static std::atomic<const dipuVendorTable*> table{nullptr};
    if (const auto* known = table.load(std::memory_order_acquire)) return *known;
    const auto* found = found_chip();
    table.store(found, std::memory_order_release);
    return *found;
}

}  // namespace

void* host_address(const at::Tensor& tensor) {
    const auto device = tensor.device();
    TORCH_CHECK(device.type() == c10::kPrivateUse1, "dlinfer's kernels for the CPU were given a tensor on ", device);
    const auto& table = chip();
    uint64_t features = 0;
    // Asked each time: a program may switch both while it runs.
    const bool known = table.features(&features) == DIPU_SUCCESS;
    TORCH_CHECK(known && (features & DIPU_FEATURE_ALIAS) && table.host_alias, "dlinfer: the CPU cannot reach the memory of ", device,
                " any more; call dlinfer.vendors.use(None) after changing what the device can do");
    if (features & DIPU_FEATURE_ASYNCHRONOUS) {
        // The queue of the current stream has in it whatever this stream must wait for on others.
        const c10::impl::VirtualGuardImpl guard(device.type());
        guard.synchronizeStream(guard.getStream(device));
    }
    const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (!storage->data()) return nullptr;
    void* host = table.host_alias(storage->data());
    TORCH_CHECK(host, "dlinfer: the device gives no address for its memory: ", table.last_error() ? table.last_error() : "no reason given");
    return static_cast<char*>(host) + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace dlinfer
