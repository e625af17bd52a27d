// Rotary position embedding.
#include "kernels/rotary.h"

#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "arguments.h"
#include "bindings.h"
#include "forms.h"

namespace dlinfer {
namespace {

using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;

/// Both tables in one dtype that kernels know, dense.
struct Tables {
    Tensor cosines, sines;

    Tables(const Tensor& cos, const Tensor& sin) {
        const bool same = cos.scalar_type() == sin.scalar_type() && has_kind(cos.scalar_type());
        cosines = (same ? cos : cos.to(at::kFloat)).contiguous();
        sines = (same ? sin : sin.to(at::kFloat)).contiguous();
    }
};

/// Tokens are all dimensions in front of the last `behind` ones; of those the last is a head.
Tensor rotated(const Tensor& given, const Tables& tables, int64_t behind, Rotation::Pairs pairs) {
    const int64_t front = given.dim() - behind;
    // Views of up to two dimensions of tokens and one of heads are read as they lie.
    const auto states = has_dense_rows(given) && front <= 2 && behind <= 2 ? given : given.contiguous();
    auto result = at::empty(given.sizes(), given.options());
    Rotation call{};
    call.kind = kind_of(states.scalar_type());
    call.outer = front == 2 ? states.size(0) : 1, call.outer_stride = front == 2 ? states.stride(0) : 0;
    call.inner = front == 2 ? states.size(1) : c10::multiply_integers(states.sizes().slice(0, static_cast<size_t>(front)));
    call.size = states.size(-1);
    call.rotary = tables.cosines.size(-1);
    if (!states.numel()) return result;
    call.heads = states.numel() / (call.outer * call.inner * call.size);
    call.inner_stride = front <= 2 ? states.stride(front - 1) : call.heads * call.size;
    call.head_stride = behind == 2 ? states.stride(-2) : call.size;
    call.states = readable(states);
    call.result = writable(result);
    call.cosines = readable(tables.cosines);
    call.sines = readable(tables.sines);
    call.table = kind_of(tables.cosines.scalar_type());
    call.pairs = pairs;
    DLINFER_PICK(rotate)(call);
    return result;
}

Two apply_rotary_pos_emb(const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin) {
    if (!has_kind(query.scalar_type())) return reference<Two>("apply_rotary_pos_emb", query, key, cos, sin);
    const Tables tables(cos, sin);
    return {rotated(query, tables, 2, Rotation::Pairs::halves), rotated(key, tables, 2, Rotation::Pairs::halves)};
}

Tensor apply_rotary_pos_emb_interleaved(const Tensor& states, const Tensor& cos, const Tensor& sin, bool native_layout) {
    if (!has_kind(states.scalar_type())) return reference<Tensor>("apply_rotary_pos_emb_interleaved", states, cos, sin, native_layout);
    return rotated(states, {cos, sin}, states.dim() - 1, native_layout ? Rotation::Pairs::adjacent_to_halves : Rotation::Pairs::adjacent);
}

}  // namespace

void bind_rotary(pybind11::module_& module) {
    using pybind11::arg;
    module.def("apply_rotary_pos_emb", &apply_rotary_pos_emb, arg("query"), arg("key"), arg("cos"), arg("sin"));
    module.def("apply_rotary_pos_emb_interleaved", &apply_rotary_pos_emb_interleaved, arg("states"), arg("cos"), arg("sin"),
               arg("native_layout") = true);
}

}  // namespace dlinfer
