#include "operators.h"

#include <cstring>
#include <memory>
#include <new>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "conversion.h"
#include "elements.h"

namespace adaptor {
namespace {

struct State {
    diopiAdaptorLookup lookup = nullptr;
    void* owner = nullptr;
    const dipuVendorTable* vendor = nullptr;
    std::unique_ptr<Operator[]> operators;
    std::unordered_map<std::string_view, int> numbers;

    State() : operators(new Operator[shim_count]) {
        for (int i = 0; i < shim_count; ++i) numbers.emplace(shims[i].name, i);
    }
};
// Never destroyed: operators may still run while the process ends.
State& state() {
    static auto* instance = new State;
    return *instance;
}

// What went wrong on this thread. That memory is lacking can be told without any.
struct Error {
    std::string text, told;
    bool out_of_memory = false;
};
Error& error() {
    static thread_local Error mine;
    return mine;
}

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
    return parts;
}

// `6:4,10:9`
bool read_dtypes(const std::string& text, Rule& rule) {
    for (const std::string& pair : split(text, ',')) {
        int from = -1, to = -1;
        char colon = 0;
        std::istringstream stream(pair);
        if (!(stream >> from >> colon >> to) || colon != ':' || !convertible(from, to)) return false;
        rule.dtype[from] = static_cast<int8_t>(to);
    }
    return true;
}

bool read_layouts(const std::string& text, Rule& rule) {
    for (const std::string& name : split(text, ',')) {
        const Layout layout = layout_named(name);
        if (layout.rank == 0 && !layout.any) return false;
        rule.layouts.push_back(layout);
    }
    return true;
}

// `in`, `made:2` (like the argument at position 2) or `made:counts`
bool read_role(const std::string& text, Rule& rule) {
    static const std::unordered_map<std::string, Role> roles = {
        {"in", Role::in}, {"out", Role::out}, {"update", Role::update}, {"made", Role::made}};
    const std::vector<std::string> parts = split(text, ':');
    const auto found = parts.empty() ? roles.end() : roles.find(parts[0]);
    if (found == roles.end() || (parts.size() == 2) != (found->second == Role::made) || parts.size() > 2) return false;
    rule.role = found->second;
    return parts.size() < 2 || parts[1] == "counts" || (std::istringstream(parts[1]) >> rule.like && rule.like > 0);
}

// `diopiAdd composite`, or `diopiAdd 2 in 6:4,10:9 NHWC contiguous` with - for what is not asked for.
bool read_line(const std::string& line) {
    const std::vector<std::string> words = split(line, ' ');
    const int number = words.empty() ? -1 : number_of(words[0].c_str());
    if (number < 0) return false;
    Operator& op = operator_at(number);
    if (words.size() == 2 && words[1] == "composite") return op.may_be_composed = true;
    if (words.size() != 6) return false;
    int position = -1;
    if (!(std::istringstream(words[1]) >> position) || position < 1 || position >= shims[number].count) return false;
    if (op.rules.empty()) op.rules.resize(shims[number].count);
    Rule& rule = op.rules[position];
    rule.contiguous = words[5] == "contiguous";
    return read_role(words[2], rule) && (words[3] == "-" || read_dtypes(words[3], rule)) && (words[4] == "-" || read_layouts(words[4], rule));
}

void* composed(const char* name, Operator& op) {
    const Composite* composite = op.may_be_composed ? composite_named(name) : nullptr;
    if (!composite) return nullptr;
    for (const char* part : composite->parts)
        if (!diopi_adaptor_symbol(part)) return nullptr;
    return composite->function;
}

}  // namespace

Operator& operator_at(int number) { return state().operators[number]; }

int number_of(const char* name) {
    const auto found = state().numbers.find(name);
    return found == state().numbers.end() ? -1 : found->second;
}

void* vendor_function(const char* name) { return state().lookup ? state().lookup(state().owner, name) : nullptr; }

const dipuVendorTable* vendor_table() { return state().vendor; }

void set_error(const std::string& text) {
    error().out_of_memory = false;
    error().text = text;
}

diopiError_t thrown(const char* name) noexcept {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        error().out_of_memory = true;
    } catch (const std::exception& failure) {
        try {
            set_error(std::string(name) + ": " + failure.what());
        } catch (...) {
            error().out_of_memory = true;
        }
    } catch (...) {
        error().text.clear();  // the library's own text is asked for next
    }
    return diopiErrorOccurred;
}

}  // namespace adaptor

using namespace adaptor;

extern "C" {

void diopi_adaptor_set_lookup(diopiAdaptorLookup lookup, void* owner) {
    state().lookup = lookup;
    state().owner = owner;
}

void diopi_adaptor_set_memory(const dipuVendorTable* vendor) { state().vendor = vendor; }

int diopi_adaptor_configure(const char* rules) try {
    state().operators.reset(new Operator[shim_count]);
    forget_trust();
    set_error("");
    for (const std::string& line : split(rules ? rules : "", '\n')) {
        if (line.empty() || read_line(line)) continue;
        set_error("the adaptor does not understand the rule `" + line + "`");
        state().operators.reset(new Operator[shim_count]);
        return 1;
    }
    return 0;
} catch (...) {
    return thrown("the rules");
}

void* diopi_adaptor_symbol(const char* name) {
    void* own = name ? vendor_function(name) : nullptr;
    const int number = name ? number_of(name) : -1;
    if (number < 0) return own;
    Operator& op = operator_at(number);
    if (!own) return composed(name, op);
    op.vendor = own;
    for (const Rule& rule : op.rules)
        if (rule.demands()) return shims[number].function;
    return own;
}

const char* diopi_adaptor_last_error(void) {
    Error& mine = error();
    const bool out_of_memory = mine.out_of_memory;
    mine.out_of_memory = false;
    mine.told.swap(mine.text);
    mine.text.clear();
    return out_of_memory ? "the adaptor has not enough host memory" : mine.told.c_str();
}

void diopi_adaptor_report(void (*row)(void* owner, const diopiAdaptorCost* cost), void* owner) {
    for (int i = 0; row && i < shim_count; ++i) {
        const Cost& cost = operator_at(i).cost;
        if (cost.calls == 0) continue;
        const diopiAdaptorCost line = {shims[i].name, cost.calls,       cost.composed,         cost.conversions, cost.on_host,
                                       cost.bytes,    cost.nanoseconds, cost.call_nanoseconds, cost.errors};
        row(owner, &line);
    }
}

}  // extern "C"
