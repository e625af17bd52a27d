// What the loops of attention read, by position.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "attention.h"

namespace dipu_vendor {

// A bool tensor [heads, queries, keys] of any strides, or nothing.
class Flags {
   public:
    explicit Flags(const at::Tensor& flags) : data_(flags.defined() ? flags.const_data_ptr<bool>() : nullptr) {
        for (int64_t dim = 0; data_ && dim < 3; ++dim) strides_[dim] = flags.stride(dim);
    }
    bool at(int64_t head, int64_t query, int64_t key, bool otherwise) const {
        return data_ ? data_[head * strides_[0] + query * strides_[1] + key * strides_[2]] : otherwise;
    }

   private:
    const bool* data_;
    int64_t strides_[3] = {0, 0, 0};
};

template <class T>
struct Rows {
    const int64_t queries, heads, width, keys, key_heads, value_width;

    Rows(const Sequence& s, const Scoring& scoring)
        : queries(s.q.size(0)), heads(s.q.size(1)), width(s.q.size(2)), keys(s.k.size(0)), key_heads(s.k.size(1)), value_width(s.v.size(2)),
          q_(s.q.const_data_ptr<T>()), k_(s.k.const_data_ptr<T>()), v_(s.v.const_data_ptr<T>()),
          slopes_(s.slopes.defined() ? s.slopes.const_data_ptr<T>() : nullptr), mask_(s.mask), keep_(s.keep), dropped_(s.keep.defined()),
          scale_(static_cast<T>(scoring.scale)), dropout_(scoring.dropout), left_(scoring.left),
          right_(scoring.causal ? 0 : scoring.right) {}

    // The keys that the window leaves to a query, as a range.
    std::pair<int64_t, int64_t> reach(int64_t query) const {
        const int64_t opposite = query + keys - queries;
        const int64_t first = left_ < 0 ? 0 : std::clamp<int64_t>(opposite - left_, 0, keys);
        const int64_t end = right_ < 0 ? keys : std::clamp<int64_t>(opposite + right_ + 1, 0, keys);
        return {first, std::max(first, end)};
    }
    bool sees(int64_t head, int64_t query, int64_t key) const { return !mask_.at(head, query, key, false); }
    bool keeps(int64_t head, int64_t query, int64_t key) const { return keep_.at(head, query, key, true); }
    // By what a weight grows that dropout keeps.
    T kept_share() const { return dropped_ && dropout_ < 1 ? static_cast<T>(1 / (1 - dropout_)) : T(1); }

    T score(int64_t head, int64_t query, int64_t key) const {
        const T product = dot(this->query(head, query), this->key(head, key), width) * scale_;
        if (!slopes_) return product;
        return product - slopes_[head] * static_cast<T>(std::abs(query + keys - queries - key));
    }
    T scale() const { return scale_; }

    const T* query(int64_t head, int64_t query) const { return q_ + (query * heads + head) * width; }
    int64_t shared(int64_t head) const { return head / (heads / key_heads); }
    const T* key(int64_t head, int64_t key) const { return k_ + (key * key_heads + shared(head)) * width; }
    const T* value(int64_t head, int64_t key) const { return v_ + (key * key_heads + shared(head)) * value_width; }

    static T dot(const T* a, const T* b, int64_t count) {
        T sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
        return sum;
    }

   private:
    const T *q_, *k_, *v_, *slopes_;
    Flags mask_, keep_;
    bool dropped_;
    T scale_;
    double dropout_;
    int64_t left_, right_;
};

}  // namespace dipu_vendor
