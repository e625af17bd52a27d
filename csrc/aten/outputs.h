// Outputs of an operator: from torch's own shape functions where it is structured, from small rules elsewhere.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>

#include <array>
#include <initializer_list>

#include "../runtime/allocator.h"

// Until torch 2.12 a shape function also names the dimensions of its outputs.
#if __has_include(<ATen/core/Dimname.h>)
#define DIPU_NAMES_PARAMETER , at::DimnameList names
#define DIPU_NAMES , names
#else
#define DIPU_NAMES_PARAMETER
#define DIPU_NAMES
#endif

namespace dipu {

// A new tensor on a device; the one way to make an output.
DIPU_API at::Tensor empty_on(int device, at::IntArrayRef sizes, at::ScalarType type);
DIPU_API at::Tensor empty_strided_on(int device, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type);

enum class Kind { Functional, InPlace, Out };

DIPU_API void check_in_place(const at::Tensor& self, at::IntArrayRef sizes, at::ScalarType type);
DIPU_API void resize_out(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options);

// A structured operator's shape function whose outputs live on the device. `meta(...)` is torch's own.
template <class Meta, size_t N, Kind kind>
class Outputs final : public Meta {
   public:
    template <class... Tensors>
    explicit Outputs(int device, Tensors&... given) : device_(device), tensors_{given...} {}

    at::Tensor& operator[](size_t i) { return proxies_[i].defined() ? proxies_[i] : tensors_[i]; }

    // The common case without the shape function: operands of one floating dtype, one shape, one dense layout.
    bool like(std::initializer_list<std::reference_wrapper<const at::Tensor>> operands) {
        const at::Tensor& first = kind == Kind::InPlace ? tensors_[0] : operands.begin()->get();
        if (!c10::isFloatingType(first.scalar_type()) || !first.is_contiguous()) return false;
        for (const at::Tensor& operand : operands) {
            if (operand.is_same(first)) continue;
            if (operand.scalar_type() != first.scalar_type() || operand.sizes() != first.sizes() || !operand.is_contiguous()) return false;
            if (kind == Kind::InPlace && operand.storage().is_alias_of(first.storage())) return false;
        }
        if constexpr (kind == Kind::Functional) tensors_[0] = empty_on(device_, first.sizes(), first.scalar_type());
        return true;
    }

    // Results that had to be computed elsewhere reach the given tensor.
    void finish() {
        for (size_t i = 0; i < N; ++i)
            if (proxies_[i].defined()) tensors_[i].copy_(proxies_[i]);
    }

    void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options
                            DIPU_NAMES_PARAMETER) override {
        allocate(i, sizes, strides, options);
        if constexpr (kind != Kind::Functional)
            if (!strides.empty() && tensors_[i].strides() != strides)
                proxies_[i] = empty_strided_on(device_, sizes, strides, options.dtype().toScalarType());
        set_base_output(i, sizes, strides, options DIPU_NAMES);
    }
    void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options
                                DIPU_NAMES_PARAMETER) override {
        allocate(i, sizes, strides, options);
        set_base_output(i, sizes, strides, options DIPU_NAMES);
    }
    const at::Tensor& maybe_get_output(int64_t i) override { return proxies_[i].defined() ? proxies_[i] : tensors_[i]; }

   private:
    void allocate(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
        if constexpr (kind == Kind::Functional) {
            const auto type = options.dtype().toScalarType();
            tensors_[i] = strides.empty() ? empty_on(device_, sizes, type) : empty_strided_on(device_, sizes, strides, type);
            if (const auto format = options.memory_format_opt(); format && strides.empty())
                tensors_[i].unsafeGetTensorImpl()->empty_tensor_restride(*format);
        } else if constexpr (kind == Kind::InPlace) {
            check_in_place(tensors_[i], sizes, options.dtype().toScalarType());
        } else {
            resize_out(tensors_[i], sizes, strides, options);
        }
    }
    void set_base_output(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options DIPU_NAMES_PARAMETER) {
        if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) Meta::set_output_raw_strided(i, sizes, strides, options DIPU_NAMES);
    }

    int device_;
    std::array<at::Tensor, N> tensors_;
    std::array<at::Tensor, N> proxies_;
};

// ---- rules for operators without a shape function; the table names them ----

inline int index_of(const at::Tensor& tensor) { return tensor.device().index(); }
inline const at::Tensor& value(const at::Tensor& tensor) { return tensor; }
DIPU_API const at::Tensor& value(const std::optional<at::Tensor>& tensor);

// Same sizes, the layout kept where it is dense.
DIPU_API at::Tensor like(const at::Tensor& tensor, std::optional<at::ScalarType> type = std::nullopt);
inline at::Tensor like_contiguous(const at::Tensor& tensor) { return empty_on(index_of(tensor), tensor.sizes(), tensor.scalar_type()); }
inline at::Tensor scalar_like(const at::Tensor& tensor) { return empty_on(index_of(tensor), {}, tensor.scalar_type()); }
DIPU_API at::Tensor broadcast(const at::Tensor& a, const at::Tensor& b, at::ScalarType type);
DIPU_API at::Tensor broadcast(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b);
DIPU_API bool expandable(const at::Tensor& small, const at::Tensor& to);
DIPU_API bool one_dtype_of(std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors);
DIPU_API bool one_dtype(const at::ITensorListRef& tensors);
template <class First, class Second, class... Rest>
bool one_dtype(const First& first, const Second& second, const Rest&... rest) {
    return one_dtype_of({value(first), value(second), value(rest)...});
}
inline bool full_precision(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble; }

inline at::Tensor masked(bool wanted, const at::Tensor& tensor) { return wanted && tensor.defined() ? like_contiguous(tensor) : at::Tensor(); }
inline at::Tensor masked_affine(bool wanted, const at::Tensor& input, at::IntArrayRef shape) {
    return wanted ? empty_on(index_of(input), shape, input.scalar_type()) : at::Tensor();
}
DIPU_API at::Tensor masked_stat(bool wanted, const at::Tensor& input);
DIPU_API at::Tensor masked_bias(bool wanted, const at::Tensor& grad_output);
DIPU_API at::Tensor layer_norm_stat(const at::Tensor& input, at::IntArrayRef normalized_shape);
DIPU_API at::Tensor channel_stat(const at::Tensor& input, bool training);
DIPU_API at::Tensor group_stat(const at::Tensor& input, int64_t batch, int64_t groups);
DIPU_API at::Tensor conv2d_out(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
                               at::IntArrayRef dilation);
DIPU_API at::Tensor pool_out(const at::Tensor& input, at::IntArrayRef output_size);
DIPU_API at::Tensor selected(const at::Tensor& input, int64_t dim, const at::Tensor& index);
DIPU_API at::Tensor embedded(const at::Tensor& weight, const at::Tensor& indices);
DIPU_API at::Tensor embedding_grad(const at::Tensor& grad_output, int64_t num_weights);

}  // namespace dipu
