#include "op_lists.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>

namespace dipu {
namespace {

std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

void read_patterns(std::vector<Pattern>& patterns, const std::string& where, const std::string& text) {
    std::stringstream stream(text);
    for (std::string item; std::getline(stream, item, ',');) {
        item = trimmed(item);
        if (item.empty()) continue;
        try {
            patterns.push_back({item, std::regex(item)});
        } catch (const std::regex_error& error) {
            TORCH_CHECK_VALUE(false, where, ": '", item, "' is not a pattern (", error.what(),
                              "). Expected comma-separated names or regular expressions, such as add.out,.*_backward");
        }
    }
}

// What torch splits before a device sees it, and the parts: forward and backward, so that a suspect falls back as a whole.
using Parts = std::map<std::string, std::vector<std::string>>;
const Parts& split_operators() {
    static const Parts parts = [] {
        const std::vector<std::string> convolution{"convolution", "convolution_overrideable", "convolution_backward",
                                                   "convolution_backward_overrideable"};
        Parts all{
            {"convolution", {"convolution_overrideable"}},
            {"convolution_overrideable", {"convolution"}},
            {"convolution_backward", {"convolution_backward_overrideable"}},
            {"convolution_backward_overrideable", {"convolution_backward"}},
            {"conv2d_backward", {"convolution_backward", "convolution_backward_overrideable"}},
            {"linear", {"addmm", "mm"}},
            {"matmul", {"mm", "bmm", "mv", "dot"}},
            {"dropout", {"native_dropout", "native_dropout_backward"}},
            {"dropout_", {"native_dropout", "native_dropout_backward"}},
            {"nll_loss", {"nll_loss_forward", "nll_loss_backward"}},
            {"nll_loss2d", {"nll_loss2d_forward", "nll_loss2d_backward"}},
            {"cross_entropy_loss", {"_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
                                    "nll_loss2d_forward", "nll_loss2d_backward"}},
            {"softmax", {"_softmax", "_softmax_backward_data"}},
            {"log_softmax", {"_log_softmax", "_log_softmax_backward_data"}},
            {"layer_norm", {"native_layer_norm", "native_layer_norm_backward"}},
            {"group_norm", {"native_group_norm", "native_group_norm_backward"}},
            {"batch_norm", {"native_batch_norm", "native_batch_norm_backward"}},
        };
        for (const char* name : {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
            all.emplace(name, convolution);
        return all;
    }();
    return parts;
}

bool exists(const std::string& base, const std::string& overload) {
    return c10::Dispatcher::singleton().findSchema({"aten::" + base, overload}).has_value();
}

// Whether a device is asked for it: not if torch has nothing but a composite of other operators.
bool reaches_a_device(const c10::OperatorHandle& op) {
    return op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
           !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// ---- names that are near a wrong one ----

size_t distance(const std::string& one, const std::string& other) {
    std::vector<size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < one.size(); ++i) {
        size_t corner = row[0]++;
        for (size_t j = 0; j < other.size(); ++j) {
            const size_t changed = corner + (one[i] != other[j]);
            corner = row[j + 1];
            row[j + 1] = std::min({changed, corner + 1, row[j] + 1});
        }
    }
    return row.back();
}

std::string near_names(const std::string& wrong, const std::set<std::string>& names) {
    const size_t most = std::max<size_t>(1, wrong.size() / 4);
    std::vector<std::pair<size_t, std::string>> near;
    for (const std::string& name : names)
        if (name.size() <= wrong.size() + most && wrong.size() <= name.size() + most)
            if (const size_t far = distance(wrong, name); far <= most) near.emplace_back(far, name);
    std::sort(near.begin(), near.end());
    std::string text;
    for (size_t i = 0; i < near.size() && i < 3; ++i) text += (i ? ", " : "") + near[i].second;
    return text;
}

struct Names {
    std::set<std::string> on_device, split;  // a device sees these; torch makes others of those
};
Names all_names() {
    Names names;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
        if (name.name.rfind("aten::", 0) != 0) continue;
        const auto op = dispatcher.findSchema(name);
        if (!op) continue;
        auto& here = reaches_a_device(*op) ? names.on_device : names.split;
        const std::string base = name.name.substr(6);
        here.insert(base);
        if (!name.overload_name.empty()) here.insert(base + "." + name.overload_name);
    }
    for (const auto& [name, parts] : split_operators()) names.on_device.insert(name);
    return names;
}

bool any_matches(const Pattern& pattern, const std::set<std::string>& names) {
    if (names.count(pattern.text)) return true;
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return std::regex_match(name, pattern.expression); });
}

FileState state_of(const std::string& path) {
    struct stat found {};
    if (path.empty() || stat(path.c_str(), &found) != 0) return {};
    return {true, found.st_mtim.tv_sec, found.st_mtim.tv_nsec, found.st_size};
}

}  // namespace

std::vector<std::string> names_of(const OpRecord& record, Form form) {
    const auto dot = record.name.find('.');
    const std::string full = record.name.substr(0, dot), overload = dot == std::string::npos ? "" : record.name.substr(dot + 1);
    const bool in_place = full.size() > 1 && full.back() == '_' && full[0] != '_';
    const std::string base = in_place ? full.substr(0, full.size() - 1) : full;
    std::vector<std::string> names{record.name, full, base};
    // the out= form that torch would have called
    for (const std::string& out : {std::string("out"), overload + "_out", std::string("grad_input")})
        if (exists(base, out)) names.push_back(base + "." + out);
    if (const auto at = overload.find("Tensor"); form == Form::Scalar && at != std::string::npos) {
        const std::string scalar = overload.substr(0, at) + "Scalar" + overload.substr(at + 6);
        if (exists(full, scalar)) names.push_back(full + "." + scalar);
        if (exists(base, scalar + "_out")) names.push_back(base + "." + scalar + "_out");
    }
    for (const auto& [name, parts] : split_operators())
        if (std::find(parts.begin(), parts.end(), base) != parts.end()) names.push_back(name);
    return names;
}

bool OpList::names(const std::vector<std::string>& names) const {
    for (const auto* patterns : {&given_, &from_file_})
        for (const Pattern& pattern : *patterns)
            for (const std::string& name : names)
                if (std::regex_match(name, pattern.expression)) return true;
    return false;
}

void OpList::set(const std::string& value) {
    std::vector<Pattern> patterns;
    read_patterns(patterns, variable, value);
    given_ = std::move(patterns);
}

bool OpList::follow_file() {
    if (file_.empty()) return false;
    // where the program was started; it may go elsewhere later
    std::error_code lost;  // that folder may be gone
    if (std::filesystem::path(file_).is_relative()) file_ = std::filesystem::absolute(file_, lost).string();
    if (lost || file_.empty()) return false;
    const FileState now = state_of(file_);
    if (now == read_) return false;
    read_ = now;
    std::vector<Pattern> patterns;
    std::ifstream stream(file_);
    int number = 0;
    for (std::string line; now.there && std::getline(stream, line);) {
        ++number;
        if (const std::string text = trimmed(line.substr(0, line.find('#'))); !text.empty())
            read_patterns(patterns, file_ + ":" + std::to_string(number), text);
    }
    from_file_ = std::move(patterns);
    return true;
}

std::string OpList::unmatched() {
    std::string text;
    std::optional<Names> known;
    for (const auto* patterns : {&given_, &from_file_})
        for (const Pattern& pattern : *patterns) {
            // operators of other libraries may come later
            if (pattern.text.find("::") != std::string::npos || !checked_.insert(pattern.text).second) continue;
            if (!known) known = all_names();
            if (any_matches(pattern, known->on_device)) continue;
            text += "dipu: " + std::string(variable) + ": '" + pattern.text + "' ";
            if (any_matches(pattern, known->split)) {
                text += "reaches no device: torch makes other operators of it. DIPU_DUMP_OP_ARGS=1 shows which; name those.\n";
                continue;
            }
            const std::string near = near_names(pattern.text, known->on_device);
            text += "matches no operator" + (near.empty() ? std::string(".") : "; did you mean " + near + "?") + "\n";
        }
    return text;
}

}  // namespace dipu
