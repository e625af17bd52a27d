// Kernels of products, compiled for several instruction sets; the one that the processor has is chosen once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dicp {

/// Rows of a product and one panel of B. `add`: to what `out` has; else `bias`, if any, is added.
struct Tile {
    const float* a;
    int64_t a_row, a_column;
    const float* panel;
    int64_t depth, width;
    float* out;
    int64_t out_row;
    const float* bias;
    bool add;
    // A sum over taps of a convolution: where each begins in `a`, and rows of the panel from tap to tap and within one.
    int64_t taps = 1;
    const int64_t* a_taps = nullptr;
    int64_t panel_tap = 0, panel_step = 1;
};

template <class T>
struct FewRows {
    int64_t depth;
    const T* a;
    int64_t a_row;
    const T* b;
    int64_t b_column;
    const T* bias;
    T* out;
    int64_t out_row;
};

constexpr int kFewRows = 4;

struct Kernels {
    int lanes, panel;
    void (*panel_product)(const Tile& tile, int64_t rows);
    void (*pack)(const float* b, int64_t b_row, int64_t b_column, int64_t depth, int64_t width, float* panel);
    void (*few_rows)(const FewRows<float>&, int64_t rows, int64_t begin, int64_t end);
    void (*few_rows_bf16)(const FewRows<uint16_t>&, int64_t rows, int64_t begin, int64_t end);
};

const Kernels& kernels();

inline int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t padded(int64_t width, int64_t lanes) { return divided(width, lanes) * lanes; }

/// Memory that begins with a line of the cache.
class Panels {
public:
    explicit Panels(size_t count) : memory_(count + 16) {}
    float* begin() { return begin_of(memory_.data()); }
    const float* begin() const { return begin_of(const_cast<float*>(memory_.data())); }
    size_t size() const { return memory_.size() - 16; }

private:
    static float* begin_of(float* memory) { return memory + (16 - reinterpret_cast<uintptr_t>(memory) / sizeof(float) % 16) % 16; }
    std::vector<float> memory_;
};

/// Memory of this thread, of at least that many numbers; two uses at once say different numbers.
template <int use>
float* scratch(size_t count) {
    static thread_local Panels memory(0);
    if (memory.size() < count) memory = Panels(count);
    return memory.begin();
}

}  // namespace dicp
