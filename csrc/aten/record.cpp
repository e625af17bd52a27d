#include "record.h"

#include <deque>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>

#include "deterministic.h"

namespace dipu {
namespace {

struct Records {
    std::mutex mutex;
    std::deque<OpRecord> all;
    std::unordered_map<const c10::FunctionSchema*, OpRecord*> by_schema;
};
Records& records() {
    static auto* instance = new Records;
    return *instance;
}

bool is_one_of(const std::string& name, const std::set<std::string_view>& names) { return names.count(name) > 0; }

std::string short_name(const c10::OperatorName& name) {
    std::string text = name.name.rfind("aten::", 0) == 0 ? name.name.substr(6) : name.name;
    return name.overload_name.empty() ? text : text + "." + name.overload_name;
}

}  // namespace

OpRecord::OpRecord(c10::OperatorHandle handle) : op(handle), name(short_name(handle.operator_name())) {
    const auto& schema = op.schema();
    bool writes_out = false;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto& argument = schema.arguments()[i];
        const bool written_here = argument.alias_info() && argument.alias_info()->isWrite();
        written.push_back(written_here);
        writes = writes || written_here;
        writes_out = writes_out || (written_here && argument.kwarg_only());
        if (auto optional = argument.type()->cast<c10::OptionalType>())
            if (optional->getElementType()->kind() == c10::TypeKind::GeneratorType) generator = static_cast<int>(i);
    }
    in_place = writes && !writes_out && schema.returns().size() == 1 && schema.returns()[0].alias_info() &&
               schema.returns()[0].alias_info()->isWrite();
    copies = is_one_of(schema.name(), {"aten::copy_", "aten::copy", "aten::_copy_from", "aten::_to_copy"});
    cpu_indices = is_one_of(schema.name(), {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
                                            "aten::_unsafe_index", "aten::_unsafe_index_put"});
    may_alert = dipu::may_alert(op.operator_name());
    asks_requires_grad = schema.name() == "aten::_sparse_mm_reduce_impl";
}

OpRecord& op_record(const c10::OperatorHandle& op) {
    const auto* schema = &op.schema();
    thread_local std::unordered_map<const c10::FunctionSchema*, OpRecord*> mine;
    auto found = mine.find(schema);
    if (found != mine.end()) return *found->second;
    std::lock_guard<std::mutex> lock(records().mutex);
    auto& slot = records().by_schema[schema];
    if (!slot) slot = &records().all.emplace_back(op);
    mine.emplace(schema, slot);
    return *slot;
}

OpRecord& op_record(const char* name) {
    const std::string text = name;
    const auto dot = text.find('.');
    const std::string overload = dot == std::string::npos ? "" : text.substr(dot + 1);
    return op_record(c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + text.substr(0, dot)).c_str(), overload.c_str()));
}

std::vector<const OpRecord*> op_records() {
    std::lock_guard<std::mutex> lock(records().mutex);
    std::vector<const OpRecord*> all;
    for (const auto& record : records().all) all.push_back(&record);
    return all;
}

void reset_op_records() {
    std::lock_guard<std::mutex> lock(records().mutex);
    for (auto& record : records().all) {
        for (auto& runs : record.runs) runs = 0;
        for (auto& spent : record.nanoseconds) spent = 0;
        for (auto& calls : record.by_setting) calls = 0;
        record.bytes = 0;
    }
}

}  // namespace dipu
