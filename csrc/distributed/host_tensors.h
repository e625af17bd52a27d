// The tensors of one operation as the host's network sees them.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace dipu {

// Row-major host tensors: the tensors themselves where the host reaches their memory, else copies that are written back.
class HostTensors {
   public:
    at::Tensor input(const at::Tensor& tensor);
    at::Tensor output(const at::Tensor& tensor);    // what it holds before does not matter
    at::Tensor in_place(const at::Tensor& tensor);
    void write_back();

   private:
    std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // where to, what
};

// The memory of a row-major host tensor as bytes.
at::Tensor bytes_of(const at::Tensor& tensor);

}  // namespace dipu
