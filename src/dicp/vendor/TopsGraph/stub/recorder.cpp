// The stub of the builder and of the runtime: a compiled program is the recording of its graph, and running one calls the
// function that a test gave, or fails.
#include "recorder.h"

#include <cstring>

#include "tops/tops_runtime.h"

namespace builder {

std::string json(bool value) { return value ? "true" : "false"; }

std::string json(int64_t value) { return std::to_string(value); }

std::string json(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return text;
}

std::string json(const char* value) { return "\"" + std::string(value) + "\""; }

std::string json(const Op& value) { return value.json(); }

std::string json(const Type& value) { return value.json(); }

Type::Type(PrimitiveType element) : tuple_(false), shapes_{{}}, elements_{element} {}

Type::Type(const std::vector<int64_t>& shape, PrimitiveType element)
    : tuple_(false), shapes_{shape}, elements_{element} {}

Type::Type(const std::vector<std::vector<int64_t>>& shapes, const std::vector<PrimitiveType>& elements)
    : tuple_(true), shapes_(shapes), elements_(elements) {}

std::string Type::json() const {
    std::string text;
    for (size_t i = 0; i < shapes_.size(); ++i) {
        text += (i ? "," : "") + std::string("{\"shape\":") + builder::json(shapes_[i]) + ",\"dtype\":\"" +
                elements_[i].name() + "\"}";
    }
    return tuple_ ? "{\"types\":[" + text + "]}" : text;
}

int64_t Type::bytes() const {
    const std::string name = elements_[0].name();
    int64_t count = name == "PRED" ? 1 : std::stoll(name.substr(name.find_first_of("0123456789"))) / 8;
    for (int64_t length : shapes_[0]) count *= length;
    return count;
}

Op::Op(std::shared_ptr<Recording> recording, int64_t number) : recording_(std::move(recording)), number_(number) {}

std::string Op::json() const { return "{\"op\":" + std::to_string(number_) + "}"; }

void Op::SetAttribute(const char* name, const Attribute& value) {
    recording_->line("{\"attribute\":\"" + std::string(name) + "\",\"of\":" + std::to_string(number_) +
                     ",\"value\":\"" + value.text() + "\"}");
}

Op record(const std::shared_ptr<Recording>& recording, const char* name,
          std::initializer_list<std::string> arguments) {
    std::string text;
    for (const std::string& argument : arguments) text += (text.empty() ? "" : ",") + argument;
    const int64_t number = recording->operations++;
    recording->line("{\"name\":\"" + std::string(name) + "\",\"number\":" + std::to_string(number) +
                    ",\"arguments\":[" + text + "]}");
    return Op(recording, number);
}

Builder::Builder() : recording_(std::make_shared<Recording>()) {}

void Builder::SetShapeInference(bool inferred) { recording_->line("{\"inference\":" + builder::json(inferred) + "}"); }

void Builder::AddFunc(const char* name) { recording_->line("{\"function\":" + builder::json(name) + "}"); }

Op Builder::CreateInput(const Type& type, const char* function) {
    return record(recording_, "CreateInput", {type.json(), builder::json(function)});
}

void Builder::SetOutput(const std::vector<Op>& outputs, const char* function) {
    recording_->line("{\"outputs\":" + builder::json(outputs) + ",\"function\":" + builder::json(function) + "}");
}

std::shared_ptr<hlir::Module> Builder::GetModule() const {
    return std::make_shared<hlir::Module>(hlir::Module{recording_->lines});
}

Op Const(const std::shared_ptr<Builder>& builder, const void* data, const Type& type) {
    static const char* digits = "0123456789abcdef";
    std::string bytes;
    const unsigned char* raw = static_cast<const unsigned char*>(data);
    for (int64_t i = 0; i < type.bytes(); ++i) {
        bytes += digits[raw[i] >> 4];
        bytes += digits[raw[i] & 15];
    }
    return record(builder->recording(), "Const", {"\"" + bytes + "\"", type.json()});
}

DotDimensionNumbers::DotDimensionNumbers(const List& lhs_batch, const List& rhs_batch, const List& lhs_contracting,
                                         const List& rhs_contracting)
    : lhs_batch(lhs_batch),
      rhs_batch(rhs_batch),
      lhs_contracting(lhs_contracting),
      rhs_contracting(rhs_contracting) {}

std::string DotDimensionNumbers::json() const {
    return "[" + builder::json(lhs_batch) + "," + builder::json(rhs_batch) + "," + builder::json(lhs_contracting) +
           "," + builder::json(rhs_contracting) + "]";
}

ConvDimensionNumbers::ConvDimensionNumbers(int64_t input_batch, int64_t input_feature, const List& input_spatial,
                                           int64_t kernel_input_feature, int64_t kernel_output_feature,
                                           const List& kernel_spatial, int64_t output_batch, int64_t output_feature,
                                           const List& output_spatial)
    : input_batch(input_batch),
      input_feature(input_feature),
      input_spatial(input_spatial),
      kernel_input_feature(kernel_input_feature),
      kernel_output_feature(kernel_output_feature),
      kernel_spatial(kernel_spatial),
      output_batch(output_batch),
      output_feature(output_feature),
      output_spatial(output_spatial) {}

std::string ConvDimensionNumbers::json() const {
    return "[" + builder::json(input_batch) + "," + builder::json(input_feature) + "," + builder::json(input_spatial) +
           "," + builder::json(kernel_input_feature) + "," + builder::json(kernel_output_feature) + "," +
           builder::json(kernel_spatial) + "," + builder::json(output_batch) + "," + builder::json(output_feature) +
           "," + builder::json(output_spatial) + "]";
}

GatherDimensionNumbers::GatherDimensionNumbers(const List& offset, const List& collapsed_slice,
                                               const List& start_index_map, int64_t index_vector)
    : offset(offset), collapsed_slice(collapsed_slice), start_index_map(start_index_map), index_vector(index_vector) {}

std::string GatherDimensionNumbers::json() const {
    return "[" + builder::json(offset) + "," + builder::json(collapsed_slice) + "," + builder::json(start_index_map) +
           "," + builder::json(index_vector) + "]";
}

ScatterDimensionNumbers::ScatterDimensionNumbers(const List& update_window, const List& inserted_window,
                                                 const List& scattered, int64_t index_vector)
    : update_window(update_window), inserted_window(inserted_window), scattered(scattered), index_vector(index_vector) {}

std::string ScatterDimensionNumbers::json() const {
    return "[" + builder::json(update_window) + "," + builder::json(inserted_window) + "," + builder::json(scattered) +
           "," + builder::json(index_vector) + "]";
}

}  // namespace builder

struct topsgraphProgramRecord {
    std::string text;
    bool compiled;
};

struct topsExecutableRecord {
    std::string text;
};

using Launched = int (*)(const char* text, void** inputs, uint64_t input_count, void** outputs, uint64_t output_count);
static Launched launched = nullptr;

// What runs a program: given by a test, for there is no device.
extern "C" __attribute__((visibility("default"))) void dicp_stub_run_by(Launched function) { launched = function; }

topsgraphResult topsgraphCreateProgramFromModule(topsgraphProgram* program, hlir::Module* module) {
    *program = new topsgraphProgramRecord{module->text, false};
    return 0;
}

topsgraphResult topsgraphCompileProgram(topsgraphProgram program, int count, const char** options) {
    for (int i = 0; i < count; ++i) {
        if (options[i][0] != '-') return 1;
    }
    program->compiled = true;
    return 0;
}

topsgraphResult topsgraphGetBinSize(topsgraphProgram program, uint64_t* size) {
    *size = program->text.size();
    return program->compiled ? 0 : 1;
}

topsgraphResult topsgraphGetBin(topsgraphProgram program, char* binary) {
    std::memcpy(binary, program->text.data(), program->text.size());
    return 0;
}

topsgraphResult topsgraphDestroyProgram(topsgraphProgram* program) {
    delete *program;
    *program = nullptr;
    return 0;
}

topsError_t topsSetDevice(int device) { return device < 0; }

topsError_t topsCreateExecutable(topsExecutable_t* executable, const char* binary, uint64_t size) {
    *executable = new topsExecutableRecord{std::string(binary, size)};
    return 0;
}

topsError_t topsDestroyExecutable(topsExecutable_t executable) {
    delete executable;
    return 0;
}

topsError_t topsLaunchExecutable(topsExecutable_t executable, topsResource_t, void** inputs, size_t input_count,
                                 int64_t*, size_t*, void** outputs, size_t output_count, int64_t*, size_t*,
                                 topsStream_t) {
    if (launched == nullptr) return 1;
    return launched(executable->text.c_str(), inputs, input_count, outputs, output_count);
}
