#include "host_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "../aten/alias.h"
#include "../runtime/vendor.h"

namespace dipu {
namespace {

// The tensor itself under the host's address, if there is one.
at::Tensor reachable(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor;
    return vendor().has(DIPU_FEATURE_ALIAS) ? cpu_alias(tensor) : at::Tensor();
}

bool plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

}  // namespace

at::Tensor HostTensors::input(const at::Tensor& tensor) {
    const at::Tensor host = reachable(tensor);
    return (host.defined() ? host : tensor.cpu()).resolve_conj().resolve_neg().contiguous();
}

at::Tensor HostTensors::output(const at::Tensor& tensor) {
    const at::Tensor host = reachable(tensor);
    if (host.defined() && plain(host)) return host;
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
    copies_.emplace_back(host.defined() ? host : tensor, copy);
    return copy;
}

at::Tensor HostTensors::in_place(const at::Tensor& tensor) {
    const at::Tensor host = reachable(tensor);
    if (host.defined() && plain(host)) return host;
    at::Tensor copy = input(tensor);
    copies_.emplace_back(host.defined() ? host : tensor, copy);
    return copy;
}

void HostTensors::write_back() {
    for (auto& [target, copy] : copies_) target.copy_(copy);
}

at::Tensor bytes_of(const at::Tensor& tensor) {
    return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, [tensor](void*) {}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace dipu
