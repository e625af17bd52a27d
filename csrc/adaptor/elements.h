// Elements of one dtype as those of another, on the host.
#pragma once
#include <cstdint>
#include <string>

#include "tensors.h"

namespace adaptor {

enum class Purpose {
    argument,  // a value that the new dtype cannot hold is an error
    result     // the library computed in the other dtype: rounded to infinity, wrapped, as the operator does in its own dtype
};

// Whether every value of `from` has an equal in `to`.
bool always_fits(int from, int to);
// Whether no value can be refused. What can be has to be looked at, and that is only possible on the host.
bool always_accepted(int from, int to, Purpose purpose);
// Whether elements of these two can be converted at all.
bool convertible(int from, int to);
// Converts `count` elements that lie one after the other; false with the reason if one does not fit.
bool convert_elements(const void* from, int from_dtype, void* to, int to_dtype, int64_t count, Purpose purpose, std::string& problem);
// A number as an argument of a call whose tensors are `dtype`; false with the reason if it does not fit.
bool number_fits(const diopiScalar_t& number, int dtype, std::string& problem);

// Elements of a tensor's memory, one after the other in the order of its dimensions, and back.
void gather(const unsigned char* memory, const Tensor& geometry, unsigned char* elements);
void scatter(const unsigned char* elements, const Tensor& geometry, unsigned char* memory);

}  // namespace adaptor
