// The steps of an operator that is made of others.
#pragma once
#include <algorithm>
#include <string>

#include "conversion.h"
#include "operators.h"

namespace adaptor {

using In = diopiConstTensorHandle_t;
using Out = diopiTensorHandle_t;

// One step after the other; after the first that fails, none.
class Steps {
   public:
    Steps(diopiContextHandle_t ctx, const char* name) : ctx_(ctx), name_(name), op_(operator_at(number_of(name))) {
        op_.cost.calls += 1;
        op_.cost.composed += 1;
        set_error("");
    }

    // A new tensor of a shape, with the dtype of another.
    Out fresh(const Numbers& shape, In like, int dtype = -1) {
        Tensor given, made;
        std::string problem;
        if (!read(like, given)) return nullptr;
        if (dtype < 0) dtype = given.dtype;
        if (!require(ctx_, shape, contiguous_strides(shape), dtype, given.device, made, problem)) return fail(problem), nullptr;
        return const_cast<Out>(made.handle);
    }
    Out fresh(In like) {
        Tensor given;
        return read(like, given) ? fresh(given.shape, like) : nullptr;
    }
    // A new tensor for a result of two tensors, element by element.
    Out fresh(In a, In b, In like) {
        Tensor first, second;
        if (!read(a, first) || !read(b, second)) return nullptr;
        Numbers shape(std::max(first.shape.size(), second.shape.size()), 1);
        for (const Numbers* sizes : {&first.shape, &second.shape})
            for (size_t i = 0; i < sizes->size(); ++i) {
                int64_t& size = shape[shape.size() - sizes->size() + i];
                if ((*sizes)[i] != 1) size = (*sizes)[i];
            }
        return fresh(shape, like);
    }

    // An argument to compute with: half precision becomes float32, or every step would round once more.
    In upcast(In handle) {
        Tensor given, made;
        if (!handle || !read(handle, given) || !is_half(given)) return handle;
        std::string problem;
        if (!require(ctx_, given.shape, contiguous_strides(given.shape), diopi_dtype_float32, given.device, made, problem) ||
            !convert(ctx_, given, made, Purpose::argument, op_.cost, problem))
            return fail(problem), handle;
        return made.handle;
    }
    // Where to write the result of the last step; finish() rounds it into the output.
    Out target(Out out) {
        Tensor given;
        if (!read(out, given) || !is_half(given)) return out;
        out_ = given;
        Out made = fresh(given.shape, out, diopi_dtype_float32);
        if (made) read(made, computed_);
        return made;
    }
    // Writes the result over an argument of an in-place operator.
    diopiError_t assign(Out argument, In result) {
        Tensor from, to;
        std::string problem;
        if (read(argument, to) && read(result, from) && !convert(ctx_, from, to, Purpose::result, op_.cost, problem)) fail(problem);
        return status_;
    }
    diopiError_t finish() {
        std::string problem;
        if (status_ == diopiSuccess && out_.handle && !convert(ctx_, computed_, out_, Purpose::result, op_.cost, problem)) fail(problem);
        return status_;
    }

    template <typename Function, typename... Arguments>
    void run(const char* part, Arguments... arguments) {
        if (status_ != diopiSuccess) return;
        auto* function = reinterpret_cast<Function>(diopi_adaptor_symbol(part));
        status_ = function ? function(ctx_, arguments...) : diopiNoImplement;
    }

    bool read(In handle, Tensor& tensor) {
        bool sparse = false;
        if (status_ == diopiSuccess && (!handle || !describe(handle, tensor, sparse))) fail("an argument is no dense tensor");
        return status_ == diopiSuccess;
    }
    void fail(const std::string& problem) {
        status_ = diopiErrorOccurred;
        set_error(std::string(name_) + ", composed: " + problem);
    }
    void unsupported() { status_ = diopiNoImplement; }
    diopiError_t status() const { return status_; }

   private:
    static bool is_half(const Tensor& tensor) { return tensor.dtype == diopi_dtype_float16 || tensor.dtype == diopi_dtype_bfloat16; }

    const diopiContextHandle_t ctx_;
    const char* name_;
    Operator& op_;
    Tensor out_, computed_;  // set where the result is computed in float32
    diopiError_t status_ = diopiSuccess;
};

}  // namespace adaptor
