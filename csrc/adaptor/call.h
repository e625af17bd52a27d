// One call of an adapted operator: converts its tensors, calls the library's function, converts the results back.
#pragma once
#include <array>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

#include "conversion.h"
#include "operators.h"

namespace adaptor {

class Call {
   public:
    Call(int number, diopiContextHandle_t ctx);

    // Replaces each argument that has a rule by what the rule asks for; the first one is at position 1. NULL stays NULL.
    template <typename... Arguments>
    void replace_arguments(Arguments&... arguments) {
        const std::array<Count, sizeof...(Arguments)> counts = {count_of(arguments)...};
        int position = 0;
        ((++position, argument(position, arguments, counts.data() + position, counts.data() + counts.size())), ...);
        position = 0;  // numbers last: whether they fit depends on what the tensors were converted to
        (number(++position, arguments), ...);
    }

    // False if something is wrong already; the library must not be called then.
    bool ready();
    template <typename Function>
    Function vendor() const {
        return reinterpret_cast<Function>(op_.vendor.load(std::memory_order_relaxed));
    }
    // What the operator answers, given the library's answer.
    diopiError_t finish(diopiError_t status);

   private:
    // A whole number among the arguments. A list of tensors is followed by its length.
    struct Count {
        bool present;
        int64_t value;
    };
    template <typename T>
    static Count count_of(const T& argument) {
        if constexpr (std::is_same_v<T, int64_t>) return {true, argument};
        return {false, 0};
    }

    void argument(int position, diopiConstTensorHandle_t& handle, const Count* next, const Count* end);
    void argument(int position, diopiTensorHandle_t& handle, const Count* next, const Count* end);
    void argument(int position, diopiConstTensorHandle_t*& handles, const Count* next, const Count* end);
    void argument(int position, diopiTensorHandle_t*& handles, const Count* next, const Count* end);
    template <typename T>
    void argument(int, T&, const Count*, const Count*) {}  // no tensor
    // It must fit into what integers or reals were narrowed to.
    void number(int position, const diopiScalar_t* number);
    template <typename T>
    void number(int, T&) {}  // no such number

    struct Pending {
        int position;
        Tensor original, replaced;
    };
    struct Made {
        int position;
        diopiTensorHandle_t* handle;
        int like;
    };

    diopiConstTensorHandle_t replace(int position, diopiConstTensorHandle_t handle);
    template <typename Handle>
    void replace_all(int position, Handle*& handles, const Count* next, const Count* end);
    bool put_back(const Pending& pending);
    int expected_dtype(const Made& made, int dtype) const;
    bool cast_back(const Made& made);
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
