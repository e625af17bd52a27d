#include "operation.h"

#include <sstream>

namespace dipu {
namespace {

const at::Tensor* first_tensor(const Operation& operation) {
    if (!operation.inputs.empty()) return &operation.inputs[0];
    if (!operation.outputs.empty()) return &operation.outputs[0];
    return nullptr;
}

}  // namespace

std::string Operation::described() const {
    std::ostringstream text;
    text << name << " (sequence number " << sequence;
    if (point_to_point()) {
        text << (type == c10d::OpType::SEND ? ", to " : ", from ");
        text << peer_name;
    }
    if (const at::Tensor* tensor = first_tensor(*this)) text << ", " << tensor->scalar_type() << ' ' << tensor->sizes();
    if (inputs.size() > 1) text << " and " << inputs.size() - 1 << " more";
    text << ')';
    return text.str();
}

}  // namespace dipu
