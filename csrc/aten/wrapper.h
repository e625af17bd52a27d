// What a generated wrapper is made of: does an entry take this call, its C arguments, the call itself.
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <diopi/functions.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "../diopi/context.h"
#include "../runtime/generator.h"
#include "../runtime/sync_debug.h"
#include "alias.h"
#include "composites.h"
#include "fallback.h"
#include "outputs.h"
#include "record.h"
#include "rules/attention.h"
#include "rules/elementwise.h"
#include "rules/loss.h"
#include "rules/selection.h"
#include "rules/vision.h"
#include "settings.h"
#include "instrumentation.h"

namespace dipu {

using DtypeMask = uint64_t;
constexpr DtypeMask bit(at::ScalarType type) { return 1ull << static_cast<int>(type); }
constexpr DtypeMask kFp = bit(at::kHalf) | bit(at::kBFloat16) | bit(at::kFloat) | bit(at::kDouble);
constexpr DtypeMask kInt = bit(at::kChar) | bit(at::kByte) | bit(at::kShort) | bit(at::kInt) | bit(at::kLong);
constexpr DtypeMask kBool = bit(at::kBool);
constexpr DtypeMask kComplex = bit(at::kComplexFloat) | bit(at::kComplexDouble);

// A function of the vendor's operator library, looked up once.
class DIPU_API Operator {
   public:
    Operator(const char* symbol, int line) : symbol_(symbol), line_(line) {}
    const char* symbol() const { return symbol_; }
    int line() const { return line_; }  // of the wrapper's call, in the generated sources
    void* function() {
        void* found = function_.load(std::memory_order_acquire);
        return C10_LIKELY(found != unknown()) ? found : look_up();
    }

   private:
    static void* unknown() { return reinterpret_cast<void*>(1); }
    void* look_up();

    const char* symbol_;
    int line_;
    std::atomic<void*> function_{unknown()};
};

// True if the call is done, false if the vendor leaves it to the fallback; raises the vendor's error.
DIPU_API bool succeeded(diopiError_t status, const Operator& op, const OpRecord& record);
// The interface is C, but a library may let a C++ exception out. Raises it, while it is handled, as an error of its function.
[[noreturn]] DIPU_API void raise_thrown(const Operator& op, const OpRecord& record, const Context& context);

// A tensor that the vendor makes by diopiRequireTensor because its size depends on the data.
class Made {
   public:
    diopiTensorHandle_t* pointer() { return &handle_; }
    void take() {
        if (handle_) tensor_ = tensor_of(handle_);
    }
    at::Tensor tensor() { return std::move(tensor_); }

   private:
    diopiTensorHandle_t handle_ = nullptr;
    at::Tensor tensor_;
};
struct MadeArgument {
    Made& made;
    operator diopiTensorHandle_t*() const { return made.pointer(); }
};
inline MadeArgument made(Made& made) {
    note_synchronization("a result whose size depends on the data");
    return {made};
}
inline void take_made(const MadeArgument& argument) { argument.made.take(); }
template <class T>
void take_made(const T&) {}

class Call {
   public:
    Call(Operator& op, OpRecord& record, Form form = Form::Tensors) : op_(op), record_(record), form_(form) {}

    int device() const { return device_; }

    template <class... Tensors>
    bool accepts(DtypeMask mask, const Tensors&... tensors) {
        return op_.function() && (takes(mask, tensors) && ...) && device_ >= 0 && !must_fall_back(record_, form_);
    }
    // Outputs the user gave: on the same device, dense.
    template <class... Tensors>
    bool holds(DtypeMask mask, const Tensors&... outputs) {
        return accepts(mask, outputs...);
    }
    template <class Function, class... Arguments>
    bool run(Arguments&&... arguments) {
        OnDevice here(device_);
        Context context(device_);
        if (C10_UNLIKELY(settings.dump.load(std::memory_order_relaxed) > 0)) print_call(record_, op_.symbol(), op_.line());
        std::optional<Stopwatch> stopwatch;
        if (C10_UNLIKELY(settings.timing.load(std::memory_order_relaxed))) stopwatch.emplace(record_, Way::Diopi);
        ProfiledWork profiled(DeviceWork::Function, op_.symbol(), device_);
        diopiError_t status;
        try {
            status = reinterpret_cast<Function>(op_.function())(context.handle(), std::forward<Arguments>(arguments)...);
        } catch (...) {
            raise_thrown(op_, record_, context);
        }
        if (C10_LIKELY(status == diopiSuccess)) {
            profiled.queued();
            record_.count(Way::Diopi);
            (take_made(arguments), ...);  // before the context that owns them is gone
            return true;
        }
        if (context.failure) std::rethrow_exception(context.failure);
        return succeeded(status, op_, record_);
    }

   private:
    bool takes(DtypeMask mask, const at::Tensor& tensor) {
        if (!tensor.defined()) return true;
        if (!tensor.is_privateuseone() || tensor.layout() != at::kStrided || !(mask & bit(tensor.scalar_type()))) return false;
        if (C10_UNLIKELY(tensor.is_conj() || tensor.is_neg())) return false;
        if (device_ < 0) device_ = tensor.device().index();
        return tensor.device().index() == device_;
    }
    bool takes(DtypeMask mask, const std::optional<at::Tensor>& tensor) { return !tensor || takes(mask, *tensor); }
    bool takes(DtypeMask mask, const at::ITensorListRef& tensors) {
        for (const at::Tensor& tensor : tensors)
            if (!takes(mask, tensor)) return false;
        return true;
    }
    bool takes(DtypeMask mask, const c10::List<std::optional<at::Tensor>>& tensors) {
        for (const std::optional<at::Tensor>& tensor : tensors)
            if (tensor && !takes(mask, *tensor)) return false;
        return true;
    }

    Operator& op_;
    OpRecord& record_;
    const Form form_;
    int device_ = -1;
};

// ---- C arguments; temporaries live as long as the call they are written in ----

struct ScalarArgument {
    diopiScalar_t value{};
    bool present = true;
    operator const diopiScalar_t*() const { return present ? &value : nullptr; }
    operator diopiScalar_t*() { return present ? &value : nullptr; }
};
// True and False go as integers: published libraries take `stype` up to uint64 for an integer and read `fval` of all others.
inline ScalarArgument scalar(const at::Scalar& from) {
    ScalarArgument to;
    if (from.isFloatingPoint()) {
        to.value.stype = diopi_dtype_float64;
        to.value.fval = from.toDouble();
    } else {
        to.value.stype = diopi_dtype_int64;
        to.value.ival = from.toLong();
    }
    return to;
}
inline ScalarArgument scalar(int64_t number) { return scalar(at::Scalar(number)); }
inline ScalarArgument scalar(const std::optional<at::Scalar>& from) {
    if (from) return scalar(*from);
    ScalarArgument absent;
    absent.present = false;
    return absent;
}

// Whether a number fits the interface: complex and very large unsigned ones do not.
inline bool plain(const at::Scalar& number) { return !number.isComplex() && number.type() != at::kUInt64; }
inline bool plain(const std::optional<at::Scalar>& number) { return !number || plain(*number); }

inline bool is_cpu_scalar(const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.dim() == 0 && (tensor.scalar_type() == at::kDouble || tensor.scalar_type() == at::kLong ||
                                                    tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBool);
}
inline at::Scalar cpu_value(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case at::kDouble: return *tensor.const_data_ptr<double>();
        case at::kFloat: return *tensor.const_data_ptr<float>();
        case at::kBool: return *tensor.const_data_ptr<bool>();
        default: return *tensor.const_data_ptr<int64_t>();
    }
}

inline diopiSize_t size(at::IntArrayRef list) { return {list.data(), static_cast<int64_t>(list.size())}; }
inline diopiSize_t size(const at::OptionalIntArrayRef& list) { return list ? size(*list) : diopiSize_t{nullptr, 0}; }

template <class T>
struct PointerArgument {
    std::optional<T> value;
    operator const T*() const { return value ? &*value : nullptr; }
};
inline PointerArgument<int64_t> pointer(std::optional<int64_t> value) { return {value}; }
inline PointerArgument<int64_t> pointer(int64_t value) { return {value}; }
inline PointerArgument<bool> pointer(std::optional<bool> value) { return {value}; }
inline PointerArgument<double> pointer(std::optional<double> value) { return {value}; }
inline PointerArgument<double> pointer(double value) { return {value}; }

// The shape of a bias whose gradient is wanted: published libraries compute the gradient only if they are given it.
struct BiasSizes {
    int64_t channels;
    bool wanted;
    diopiSize_t value{};
    operator diopiSize_t*() {
        value = {&channels, 1};
        return wanted ? &value : nullptr;
    }
};
inline BiasSizes bias_sizes_if(bool wanted, const at::Tensor& grad_output) { return {grad_output.size(1), wanted}; }

struct TextArgument {
    std::string value;
    operator const char*() const { return value.c_str(); }
};
inline TextArgument text(c10::string_view value) { return {std::string(value)}; }

struct HandleList {
    c10::SmallVector<at::Tensor, 8> tensors;
    c10::SmallVector<diopiConstTensorHandle_t, 8> values;
    operator diopiConstTensorHandle_t*() { return values.data(); }
};
inline HandleList handles(const at::ITensorListRef& list) {
    HandleList made;
    for (const at::Tensor& tensor : list) made.tensors.push_back(tensor);
    for (const at::Tensor& tensor : made.tensors) made.values.push_back(handle(tensor));
    return made;
}
inline HandleList handles(const c10::List<std::optional<at::Tensor>>& list) {
    HandleList made;
    for (const std::optional<at::Tensor>& tensor : list) made.tensors.push_back(tensor ? *tensor : at::Tensor());
    for (const at::Tensor& tensor : made.tensors) made.values.push_back(handle(tensor));
    return made;
}
inline int64_t count(const at::ITensorListRef& list) { return static_cast<int64_t>(list.size()); }
inline int64_t count(const c10::List<std::optional<at::Tensor>>& list) { return static_cast<int64_t>(list.size()); }

// Tensors of a list that the function writes.
struct WrittenList {
    c10::SmallVector<at::Tensor, 8> tensors;
    c10::SmallVector<diopiTensorHandle_t, 8> values;
    operator diopiTensorHandle_t*() { return values.data(); }
};
inline WrittenList handles_to(at::TensorList list) {
    WrittenList made;
    made.tensors.append(list.begin(), list.end());
    for (at::Tensor& tensor : made.tensors) made.values.push_back(handle(tensor));
    return made;
}

// ---- what the conditions of the table ask; diopi.lowering has the same in Python ----

inline bool is_bool(const at::Scalar& number) { return number.isBoolean(); }
inline bool is_integer(const at::Scalar& number) { return number.isIntegral(/*includeBool=*/true); }
inline bool or_true(std::optional<bool> value) { return value.value_or(true); }
inline bool or_false(std::optional<bool> value) { return value.value_or(false); }
// Whether a scale says no more than the sizes do: then a function that knows only sizes computes the same.
inline bool by_size(std::optional<double> scale, int64_t before, int64_t after) {
    return !scale || (before > 0 && after % before == 0 && *scale == static_cast<double>(after / before));
}
inline diopiRoundMode_t round_mode(const std::optional<c10::string_view>& name) {
    if (!name) return RoundModeNone;
    TORCH_CHECK(*name == "trunc" || *name == "floor", "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", *name, "'");
    return *name == "trunc" ? RoundModeTrunc : RoundModeFloor;
}
inline bool floating_or_none(std::optional<at::ScalarType> type) { return !type || c10::isFloatingType(*type); }
template <class T>
bool present(const std::optional<T>& value) { return value.has_value(); }
inline bool present(const at::Tensor& tensor) { return tensor.defined(); }
inline bool present(const at::OptionalIntArrayRef& list) { return list.has_value(); }
template <class T>
bool absent(const T& value) { return !present(value); }
inline bool is_floating(const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); }

struct GeneratorArgument {
    at::Generator value;
    operator diopiGeneratorHandle_t() { return reinterpret_cast<diopiGeneratorHandle_t>(&value); }
};
inline GeneratorArgument generator_handle(at::Generator value) { return {std::move(value)}; }
inline at::Generator generator_or_default(const std::optional<at::Generator>& given, const at::Tensor& tensor) {
    return vendor_generator(given ? *given : default_generator(tensor.device().index()));
}
inline at::Generator default_generator(const at::Tensor& tensor) { return vendor_generator(default_generator(tensor.device().index())); }

}  // namespace dipu
