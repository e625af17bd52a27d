// What a handle describes, and what a rule asks of it.
#pragma once
#include <diopi/diopirt.h>

#include <cstdint>
#include <string>
#include <vector>

namespace adaptor {

constexpr int kDtypes = 17;  // codes 0 to 16

using Numbers = std::vector<int64_t>;

struct Tensor {
    diopiConstTensorHandle_t handle = nullptr;
    const void* data = nullptr;
    Numbers shape, stride;
    int dtype = -1;
    int64_t numel = 0;
    diopiDevice_t device = diopi_device;
};

// How the elements lie in memory. `any` accepts everything of every rank.
struct Layout {
    std::string name;
    int64_t rank = 0;
    bool channels_last = false;
    bool any = false;
};

// What a function does with a tensor argument.
enum class Role {
    in,      // reads it
    out,     // writes it without reading it
    update,  // reads and writes it
    made     // makes it by diopiRequireTensor
};

// What the library wants one argument to be.
struct Rule {
    // A made tensor has the dtype of the argument at position `like`; kCounts: it holds positions or counts, which are int64.
    static constexpr int kCounts = -1;

    Role role = Role::in;
    int like = kCounts;
    int8_t dtype[kDtypes];        // from -> to; -1: stays
    std::vector<Layout> layouts;  // accepted ones; the first of the tensor's rank is the target
    bool contiguous = false;

    Rule();
    bool demands() const;
};

// Bytes of one element; 0 for a code that is no dtype.
int64_t element_size(int dtype);
const char* dtype_name(int dtype);
// A layout by its published name; its rank is 0 and it is not `any` if there is none of that name.
Layout layout_named(const std::string& name);

// Reads a handle; false if it is none, or if it is sparse (those are handed on as they are).
bool describe(diopiConstTensorHandle_t handle, Tensor& tensor, bool& sparse);
Numbers contiguous_strides(const Numbers& shape);
bool is_contiguous(const Tensor& tensor);
// Elements from the first to the last one that the strides reach.
int64_t extent(const Tensor& tensor);
// The strides the rule asks for, given the dtype is to be changed or not; the tensor's own if it is good as it is.
Numbers wanted_strides(const Rule& rule, const Tensor& tensor, bool new_memory);

}  // namespace adaptor
