#include "sparse.h"

#include "../profiler/recorder.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "../runtime/device.h"
#include "fallback.h"

namespace dipu {

at::Tensor make_coo(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef size, bool coalesced) {
    auto impl = c10::make_intrusive<at::SparseTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), values.dtype());
    impl->resize_(indices.size(0), values.dim() - 1, size);
    impl->set_indices_and_values_unsafe(indices, values);
    impl->set_coalesced(coalesced);
    return at::Tensor(std::move(impl));
}

at::Tensor make_compressed(const at::Tensor& compressed, const at::Tensor& plain, const at::Tensor& values, at::IntArrayRef size,
                           at::Layout layout) {
    auto impl = c10::make_intrusive<at::SparseCsrTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::SparseCsrPrivateUse1), values.device(), layout,
                                                             values.dtype());
    impl->set_member_tensors(compressed, plain, values, size);
    return at::Tensor(std::move(impl));
}

namespace {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pinned = std::optional<bool>;

at::Tensor coo_with_parts(int64_t, int64_t, at::IntArrayRef size, const at::Tensor& indices, const at::Tensor& values, Dtype, Layout, Device,
                          Pinned, std::optional<bool> coalesced) {
    return make_coo(indices, values, size, coalesced.value_or(false));
}

at::Tensor empty_coo(int64_t sparse_dim, int64_t dense_dim, at::IntArrayRef size, Dtype dtype, Layout, Device device, Pinned) {
    const auto where = dipu_device(device ? index_or_current(*device) : current_device());
    at::DimVector value_size{0};
    for (auto length : size.slice(static_cast<size_t>(sparse_dim), static_cast<size_t>(dense_dim))) value_size.push_back(length);
    at::Tensor indices = at::empty({sparse_dim, 0}, at::TensorOptions().dtype(at::kLong).device(where));
    at::Tensor values = at::empty(value_size, at::TensorOptions().dtype(c10::dtype_or_default(dtype)).device(where));
    return make_coo(indices, values, size, true);
}

at::Tensor empty_sparse(at::IntArrayRef size, Dtype dtype, Layout layout, Device device, Pinned pinned, std::optional<at::MemoryFormat>) {
    return empty_coo(static_cast<int64_t>(size.size()), 0, size, dtype, layout, device, pinned);
}

at::Tensor compressed_with_parts(const at::Tensor& compressed, const at::Tensor& plain, const at::Tensor& values, at::IntArrayRef size, Dtype,
                                 Layout layout, Device, Pinned) {
    return make_compressed(compressed, plain, values, size, layout.value());
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    OpRecord& record = op_record(op);
    ProfiledOperator profiled(record.name);
    fallback(record, stack);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>()); }

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
    m.impl("_sparse_coo_tensor_with_dims_and_tensors", coo_with_parts);
    m.impl("_sparse_coo_tensor_with_dims", empty_coo);
    m.impl("empty.memory_format", empty_sparse);
    m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
    m.impl("_values", TORCH_FN(at::native::_values_sparse));
    m.impl("indices", TORCH_FN(at::native::indices_sparse));
    m.impl("values", TORCH_FN(at::native::values_sparse));
    m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
    m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
    m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
    m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
    m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
    m.impl("clone", TORCH_FN(at::native::clone_sparse));
    m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
    m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
    m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
    m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
    m.impl("_sparse_compressed_tensor_unsafe", compressed_with_parts);
    m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
    m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
    m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
    m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
    m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
    m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
    m.impl("values", TORCH_FN(at::native::values_sparse_csr));
    m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
    m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
    m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
}

}  // namespace
}  // namespace dipu
