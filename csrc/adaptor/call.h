// One call of an adapted operator: converts its tensors, calls the library's function, converts the results back.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "conversion.h"
#include "operators.h"

namespace adaptor {

class Call {
   public:
    Call(int number, diopiContextHandle_t ctx);

    // Each replaces the argument at this position by what the rules ask for. NULL stays NULL.
    void in(int position, diopiConstTensorHandle_t& handle);
    void in(int position, diopiTensorHandle_t& handle);
    void out(int position, diopiTensorHandle_t& handle);
    void update(int position, diopiTensorHandle_t& handle);
    void ins(int position, diopiConstTensorHandle_t*& handles, int64_t count);
    void outs(int position, diopiTensorHandle_t*& handles, int64_t count);
    void updates(int position, diopiTensorHandle_t*& handles, int64_t count);
    // A tensor the library makes, of the dtype of the input at position `like`; kCounts: positions or counts, which are int64.
    static constexpr int kCounts = -1;
    void made(int position, diopiTensorHandle_t* handle, int like);
    // A number: it must fit into what integers or reals were narrowed to. Comes after all tensors.
    void number(int position, const diopiScalar_t* number);

    // False if something is wrong already; the library must not be called then.
    bool ready();
    template <typename Function>
    Function vendor() const {
        return reinterpret_cast<Function>(op_.vendor.load(std::memory_order_relaxed));
    }
    // What the operator answers, given the library's answer.
    diopiError_t finish(diopiError_t status);

   private:
    struct Pending {
        int position;
        Tensor original, replaced;
    };
    struct Made {
        int position;
        diopiTensorHandle_t* handle;
        int like;
    };

    diopiConstTensorHandle_t replace(int position, diopiConstTensorHandle_t handle, bool read, bool written);
    template <typename Handle>
    void replace_all(int position, Handle*& handles, int64_t count, bool read, bool written);
    bool put_back(const Pending& pending);
    int expected_dtype(const Made& made, int dtype) const;
    bool widen(const Made& made);
    void fail(int position, const std::string& problem);
    const Rule* rule(int position) const;

    const int number_;
    Operator& op_;
    const diopiContextHandle_t ctx_;
    bool failed_ = false;
    std::vector<Pending> inputs_, results_;
    std::vector<Made> made_;
    std::deque<std::vector<diopiConstTensorHandle_t>> lists_;
    uint64_t started_ = 0;
};

}  // namespace adaptor
