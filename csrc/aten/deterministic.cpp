#include "deterministic.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "settings.h"

namespace dipu {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

bool always(Arguments) { return true; }
bool accumulates(Arguments arguments) { return arguments[3].toBool(); }  // without, torch refuses it on every device
bool weighted(Arguments arguments) { return arguments[1].isTensor() && arguments[1].toTensor().defined(); }
constexpr int64_t kMaximum = 2;  // of a bag
bool bag_of_maxima(Arguments arguments) { return arguments[8].toInt() == kMaximum; }
bool dense_bag_of_maxima(Arguments arguments) { return arguments[7].toInt() == kMaximum; }
bool multiplies(Arguments arguments) { return arguments[4].toStringRef() == "prod"; }
bool sums_fractions(Arguments arguments) {
    const auto type = arguments[2].isNone() ? arguments[0].toTensor().scalar_type() : arguments[2].toScalarType();
    return at::isFloatingType(type) || at::isComplexType(type);
}

struct Rule {
    std::string_view name;
    bool (*refused)(Arguments);
};

// The list in the documentation of torch.use_deterministic_algorithms, by the operators that its modules and functions call.
constexpr Rule kRules[] = {
    {"aten::_adaptive_avg_pool2d_backward", always},
    {"aten::_adaptive_avg_pool3d_backward", always},
    {"aten::_ctc_loss_backward", always},
    {"aten::_embedding_bag_backward", bag_of_maxima},
    {"aten::_embedding_bag_dense_backward", dense_bag_of_maxima},
    {"aten::_upsample_bicubic2d_aa_backward", always},
    {"aten::_upsample_bilinear2d_aa_backward", always},
    {"aten::adaptive_avg_pool3d_backward", always},
    {"aten::adaptive_max_pool2d_backward", always},
    {"aten::avg_pool3d_backward", always},
    {"aten::bincount", weighted},
    {"aten::cumsum", sums_fractions},
    {"aten::cumsum_", sums_fractions},
    {"aten::fractional_max_pool2d_backward", always},
    {"aten::fractional_max_pool3d_backward", always},
    {"aten::grid_sampler_2d_backward", always},
    {"aten::grid_sampler_3d_backward", always},
    {"aten::histc", always},
    {"aten::kthvalue", always},
    {"aten::max_unpool2d", always},
    {"aten::max_unpool3d", always},
    {"aten::median with indices", always},
    {"aten::nanmedian with indices", always},
    {"aten::nll_loss2d_backward", always},
    {"aten::nll_loss2d_forward", always},
    {"aten::put_", accumulates},
    {"aten::reflection_pad1d_backward", always},
    {"aten::reflection_pad2d_backward", always},
    {"aten::reflection_pad3d_backward", always},
    {"aten::scatter_reduce", multiplies},
    {"aten::scatter_reduce_", multiplies},
    {"aten::upsample_bicubic2d_backward", always},
    {"aten::upsample_bilinear2d_backward", always},
    {"aten::upsample_linear1d_backward", always},
    {"aten::upsample_trilinear3d_backward", always},
};

const Rule* rule_of(const c10::OperatorName& name) {
    // median.dim, median.dim_values, median.names_dim: the median alone does not depend on the order, where it lies does
    const bool indices = name.overload_name.find("dim") != std::string::npos;
    const std::string wanted = name.name + (indices && name.name.find("median") != std::string::npos ? " with indices" : "");
    const auto* found = std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& rule) { return rule.name == wanted; });
    return found == std::end(kRules) ? nullptr : found;
}

}  // namespace

bool may_alert(const c10::OperatorName& name) { return rule_of(name) != nullptr; }

bool deterministic_algorithms() { return at::globalContext().deterministicAlgorithms(); }

void alert_if_nondeterministic(const OpRecord& record, const torch::jit::Stack& stack) {
    if (!deterministic_algorithms()) return;
    const Arguments arguments(stack.data() + stack.size() - record.written.size(), record.written.size());
    if (rule_of(record.op.operator_name())->refused(arguments)) at::globalContext().alertNotDeterministic(record.name + " on dipu");
}

}  // namespace dipu
