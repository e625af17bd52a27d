// What programs use of the graph compiler's builder, declared for machines without the compiler: calls are recorded as JSON.
#ifndef DICP_STUB_HLIR_BUILDER_H
#define DICP_STUB_HLIR_BUILDER_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace hlir {

// A finished graph; here, its recording.
struct Module {
    std::string text;
};

}  // namespace hlir

namespace builder {

class PrimitiveType {
  public:
    static PrimitiveType PRED() { return PrimitiveType("PRED"); }
    static PrimitiveType S8() { return PrimitiveType("S8"); }
    static PrimitiveType S16() { return PrimitiveType("S16"); }
    static PrimitiveType S32() { return PrimitiveType("S32"); }
    static PrimitiveType S64() { return PrimitiveType("S64"); }
    static PrimitiveType U8() { return PrimitiveType("U8"); }
    static PrimitiveType F16() { return PrimitiveType("F16"); }
    static PrimitiveType BF16() { return PrimitiveType("BF16"); }
    static PrimitiveType F32() { return PrimitiveType("F32"); }
    const char* name() const { return name_; }

  private:
    explicit PrimitiveType(const char* name) : name_(name) {}
    const char* name_;
};

// Of a tensor, of a scalar, or of a tuple of tensors.
class Type {
  public:
    explicit Type(PrimitiveType element);
    Type(const std::vector<int64_t>& shape, PrimitiveType element);
    Type(const std::vector<std::vector<int64_t>>& shapes, const std::vector<PrimitiveType>& elements);
    std::string json() const;
    int64_t bytes() const;

  private:
    bool tuple_;
    std::vector<std::vector<int64_t>> shapes_;
    std::vector<PrimitiveType> elements_;
};

class Attribute {
  public:
    explicit Attribute(const char* text) : text_(text) {}
    const std::string& text() const { return text_; }

  private:
    std::string text_;
};

struct Recording;

class Op {
  public:
    Op() = default;
    Op(std::shared_ptr<Recording> recording, int64_t number);
    void SetAttribute(const char* name, const Attribute& value);
    std::string json() const;
    const std::shared_ptr<Recording>& recording() const { return recording_; }

  private:
    std::shared_ptr<Recording> recording_;
    int64_t number_ = -1;
};

class Builder {
  public:
    Builder();
    void SetShapeInference(bool inferred);
    void AddFunc(const char* name);
    Op CreateInput(const Type& type, const char* function = "");
    void SetOutput(const std::vector<Op>& outputs, const char* function = "");
    std::shared_ptr<hlir::Module> GetModule() const;
    const std::shared_ptr<Recording>& recording() const { return recording_; }

  private:
    std::shared_ptr<Recording> recording_;
};

using List = std::vector<int64_t>;

struct DotDimensionNumbers {
    List lhs_batch, rhs_batch, lhs_contracting, rhs_contracting;
    DotDimensionNumbers(const List& lhs_batch, const List& rhs_batch, const List& lhs_contracting,
                        const List& rhs_contracting);
    std::string json() const;
};

struct ConvDimensionNumbers {
    int64_t input_batch, input_feature;
    List input_spatial;
    int64_t kernel_input_feature, kernel_output_feature;
    List kernel_spatial;
    int64_t output_batch, output_feature;
    List output_spatial;
    ConvDimensionNumbers(int64_t input_batch, int64_t input_feature, const List& input_spatial,
                         int64_t kernel_input_feature, int64_t kernel_output_feature, const List& kernel_spatial,
                         int64_t output_batch, int64_t output_feature, const List& output_spatial);
    std::string json() const;
};

struct GatherDimensionNumbers {
    List offset, collapsed_slice, start_index_map;
    int64_t index_vector;
    GatherDimensionNumbers(const List& offset, const List& collapsed_slice, const List& start_index_map,
                           int64_t index_vector);
    std::string json() const;
};

struct ScatterDimensionNumbers {
    List update_window, inserted_window, scattered;
    int64_t index_vector;
    ScatterDimensionNumbers(const List& update_window, const List& inserted_window, const List& scattered,
                            int64_t index_vector);
    std::string json() const;
};

}  // namespace builder

#include "dtu/hlir_builder/hlir_builder_client_ops.h"

#endif  // DICP_STUB_HLIR_BUILDER_H
