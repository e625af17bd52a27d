#include "switches.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <sstream>
#include <vector>

namespace dipu {

Switches switches;

namespace {

struct List {
    const char* variable;
    const char* file;
    Wish wish;
    std::vector<std::regex> patterns{};
    std::vector<std::regex> from_file{};
};

struct Lists {
    std::mutex mutex;
    std::atomic<uint64_t> epoch{1};
    std::array<List, 3> all{{{"DIPU_FORCE_FALLBACK_OPS_LIST", ".dipu_force_fallback_op_list.config", kFallBack},
                             {"DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "", kKeepDefault},
                             {"DIPU_AUTOCOMPARE_OPS_LIST", ".specified_autocompare_op_list.config", kCompare}}};
};
Lists& lists() {
    static auto* instance = new Lists;
    return *instance;
}

constexpr int kWishBits = 3;

std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::vector<std::regex> patterns_of(const std::string& where, const std::string& text) {
    std::vector<std::regex> patterns;
    std::stringstream stream(text);
    for (std::string item; std::getline(stream, item, ',');) {
        item = trimmed(item);
        if (item.empty() || item[0] == '#') continue;
        try {
            patterns.emplace_back(item);
        } catch (const std::regex_error& error) {
            TORCH_CHECK_VALUE(false, where, ": '", item, "' is not a pattern (", error.what(),
                              "). Expected comma-separated names or regular expressions, such as add.out,.*_backward");
        }
    }
    return patterns;
}

// The list's file in the working directory: a name or pattern a line, or several with commas.
std::vector<std::regex> patterns_in(const char* file) {
    std::vector<std::regex> patterns;
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);)
        for (auto& pattern : patterns_of(file, line)) patterns.push_back(std::move(pattern));
    return patterns;
}

void refresh() {
    bool any = false, compares = false;
    for (const auto& list : lists().all) {
        const bool used = !list.patterns.empty() || !list.from_file.empty();
        any = any || used;
        compares = compares || (used && list.wish == kCompare);
    }
    switches.any_list = any;
    switches.watching = compares || switches.dump >= 2;
    lists().epoch += 1;
}

int number(const std::string& name, const std::string& value, int most) {
    if (value.empty()) return 0;
    TORCH_CHECK_VALUE(value.size() == 1 && value[0] >= '0' && value[0] <= '0' + most, name, "='", value, "': expected a number from 0 to ", most);
    return value[0] - '0';
}

// The names a user may mean by one operator: its own, without the overload, and the out= form torch would have called.
std::vector<std::string> names_of(const OpRecord& record) {
    const auto dot = record.name.find('.');
    const std::string full = record.name.substr(0, dot), overload = dot == std::string::npos ? "" : record.name.substr(dot + 1);
    const bool in_place = full.size() > 1 && full.back() == '_' && full[0] != '_';
    const std::string base = in_place ? full.substr(0, full.size() - 1) : full;
    std::vector<std::string> names{record.name, full, base};
    for (const std::string& out : {std::string("out"), overload + "_out", std::string("grad_input")})
        if (c10::Dispatcher::singleton().findSchema({"aten::" + base, out})) names.push_back(base + "." + out);
    // what torch splits before a device sees it, and users know under the name they wrote
    static const std::map<std::string, std::vector<std::string>> known_as{
        {"convolution", {"conv1d", "conv2d", "conv3d"}},
        {"convolution_overrideable", {"convolution", "conv1d", "conv2d", "conv3d"}},
        {"convolution_backward_overrideable", {"convolution_backward", "conv2d_backward"}},
        {"native_dropout", {"dropout", "dropout_"}},
        {"addmm", {"linear"}},
        {"mm", {"linear", "matmul"}},
        {"bmm", {"matmul"}},
        {"nll_loss_forward", {"cross_entropy_loss", "nll_loss"}},
        {"nll_loss2d_forward", {"cross_entropy_loss", "nll_loss2d"}},
    };
    if (const auto found = known_as.find(base); found != known_as.end()) names.insert(names.end(), found->second.begin(), found->second.end());
    return names;
}

bool any_matches(const std::vector<std::regex>& patterns, const std::vector<std::string>& names) {
    for (const auto& pattern : patterns)
        for (const auto& name : names)
            if (std::regex_match(name, pattern)) return true;
    return false;
}

}  // namespace

unsigned wishes(OpRecord& record) {
    const uint64_t now = lists().epoch.load(std::memory_order_acquire);
    const uint64_t decided = record.wishes.load(std::memory_order_acquire);
    if (decided >> kWishBits == now) return decided & ((1u << kWishBits) - 1);
    std::lock_guard<std::mutex> lock(lists().mutex);
    const auto names = names_of(record);
    unsigned found = 0;
    for (const auto& list : lists().all)
        if (any_matches(list.patterns, names) || any_matches(list.from_file, names)) found |= list.wish;
    record.wishes.store(lists().epoch.load() << kWishBits | found, std::memory_order_release);
    return found;
}

bool set_switch(const std::string& name, const std::string& value) {
    for (auto& list : lists().all) {
        if (name != list.variable) continue;
        auto patterns = patterns_of(name, value);
        std::lock_guard<std::mutex> lock(lists().mutex);
        list.patterns = std::move(patterns);
        refresh();
        return true;
    }
    std::unique_lock<std::mutex> lock(lists().mutex);
    if (name == "DIPU_DUMP_OP_ARGS")
        switches.dump = number(name, value, 3);
    else if (name == "DIPU_LOG_FALLBACK_INFO")
        switches.log_fallback = number(name, value, 1) != 0;
    else if (name == "DIPU_WITH_DIOPI_LIBRARY")
        switches.without_diopi = value == "DISABLE" || value == "disable";
    else
        return false;
    refresh();
    return true;
}

std::string read_switches() {
    std::string problems;
    const auto attempt = [&](auto&& body) {
        try {
            body();
        } catch (const c10::Error& error) {
            problems += std::string(error.what_without_backtrace()) + "\n";
        }
    };
    for (auto& list : lists().all)
        if (*list.file) attempt([&] {
            auto patterns = patterns_in(list.file);
            std::lock_guard<std::mutex> lock(lists().mutex);
            list.from_file = std::move(patterns);
            refresh();
        });
    for (const char* name : {"DIPU_FORCE_FALLBACK_OPS_LIST", "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "DIPU_AUTOCOMPARE_OPS_LIST",
                             "DIPU_DUMP_OP_ARGS", "DIPU_LOG_FALLBACK_INFO", "DIPU_WITH_DIOPI_LIBRARY"}) {
        const char* value = std::getenv(name);
        attempt([&] { set_switch(name, value ? value : ""); });
    }
    return problems;
}

}  // namespace dipu
