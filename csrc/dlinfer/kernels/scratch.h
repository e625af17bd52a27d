// Memory that a kernel needs while it runs. No container of the standard library: their functions are shared between capabilities.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>

namespace dlinfer::DLINFER_CPU_CAPABILITY {

template <typename Element>
struct Scratch {
    static constexpr std::align_val_t ALIGNMENT{64};

    explicit Scratch(int64_t count)
        : data(count ? static_cast<Element*>(::operator new(sizeof(Element) * static_cast<std::size_t>(count), ALIGNMENT)) : nullptr) {}
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        if (data) ::operator delete(data, ALIGNMENT);
    }

    Element* const data;
};

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
