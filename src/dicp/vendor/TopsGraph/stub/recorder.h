// How the stub of the builder writes down what a program calls.
#ifndef DICP_STUB_RECORDER_H
#define DICP_STUB_RECORDER_H

#include <initializer_list>

#include "dtu/hlir_builder/hlir_builder.h"

namespace builder {

// One JSON object a line, in the order of the calls.
struct Recording {
    std::string lines;
    int64_t operations = 0;

    void line(const std::string& text) { lines += text + "\n"; }
};

std::string json(bool value);
std::string json(int64_t value);
std::string json(double value);
std::string json(const char* value);
std::string json(const Op& value);
std::string json(const Type& value);

template <typename Dimensions>
auto json(const Dimensions& value) -> decltype(value.json()) {
    return value.json();
}

template <typename Element>
std::string json(const std::vector<Element>& values) {
    std::string text;
    for (size_t i = 0; i < values.size(); ++i) text += (i ? "," : "") + json(static_cast<Element>(values[i]));
    return "[" + text + "]";
}

Op record(const std::shared_ptr<Recording>& recording, const char* name, std::initializer_list<std::string> arguments);

inline const std::shared_ptr<Recording>& recording_of(const Op& operand) { return operand.recording(); }
inline const std::shared_ptr<Recording>& recording_of(const std::vector<Op>& operands) {
    return operands.front().recording();
}

}  // namespace builder

#endif  // DICP_STUB_RECORDER_H
