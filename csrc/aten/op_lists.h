// The lists of operators in variables DIPU_..._LIST and in their files: patterns, the names they may mean, what matches nothing.
#pragma once
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "record.h"

namespace dipu {

enum OpFlag : unsigned { kFallBack = 1, kKeepDefault = 2, kCompare = 4 };
constexpr int kOpFlagBits = 3;

// How an operator is called. What the user writes as `x + 3` reaches the device as add.Tensor with a number for a tensor; it is
// named add.Scalar as well.
enum class Form { Tensors, Scalar };

// All names a user may mean by a call of this operator.
std::vector<std::string> names_of(const OpRecord& record, Form form);

struct Pattern {
    std::string text;
    std::regex expression;
};

// What a list's file looked like when it was read.
struct FileState {
    bool there = false;
    int64_t seconds = 0, nanoseconds = 0, size = 0;
    bool operator==(const FileState& other) const {
        return there == other.there && seconds == other.seconds && nanoseconds == other.nanoseconds && size == other.size;
    }
};

// One list: a variable and, for some, a file in the folder the program was started in. The owner locks.
class OpList {
   public:
    OpList(const char* variable, const char* file, OpFlag flag) : variable(variable), flag(flag), file_(file) {}

    const char* const variable;
    const OpFlag flag;

    bool used() const { return !given_.empty() || !from_file_.empty(); }
    bool names(const std::vector<std::string>& names) const;
    // The variable's value; throws c10::ValueError, and leaves all as it was, if it is wrong.
    void set(const std::string& value);
    // Reads the file if it is another one than last time. True if it did. What is wrong with it is thrown; the old patterns stay.
    bool follow_file();
    // A line for each pattern that no operator of the device has, told once each.
    std::string unmatched();

   private:
    std::string file_;
    FileState read_;
    std::vector<Pattern> given_, from_file_;
    std::set<std::string> checked_;  // patterns whose operators were looked for
};

}  // namespace dipu
