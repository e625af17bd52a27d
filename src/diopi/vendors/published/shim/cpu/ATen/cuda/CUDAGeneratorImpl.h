// A generator of the CPU that has an offset, as the published sources expect of the accelerator's: one engine for each pair of seed
// and offset. It is used for one call; after it the offset is the next one, so that two calls draw different numbers.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

namespace at {
class OffsetGenerator : public CPUGeneratorImpl {
   public:
    void set_current_seed(uint64_t seed) override {
        seed_ = seed;
        start();
    }
    uint64_t current_seed() const override { return seed_; }
    void set_offset(uint64_t offset) override {
        offset_ = offset;
        start();
    }
    uint64_t get_offset() const override { return offset_ + 1; }

   private:
    void start() { CPUGeneratorImpl::set_current_seed(seed_ + offset_ * 0x9e3779b97f4a7c15ull); }

    uint64_t seed_ = 0, offset_ = 0;
};

namespace cuda::detail {
inline Generator createCUDAGenerator(int = -1) { return make_generator<OffsetGenerator>(); }
}  // namespace cuda::detail
}  // namespace at
