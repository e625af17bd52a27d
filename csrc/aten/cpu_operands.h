// The operands of one call as the CPU sees them: aliases of device memory where the vendor allows it, copies elsewhere.
//
// Copies are made of the bytes the operands span, once for each storage, so that operands that overlap on the device
// overlap on the CPU too and views come back as views.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "alias.h"

namespace dipu {

class CpuOperands {
   public:
    explicit CpuOperands(bool by_alias, bool keep_requires_grad = false) : by_alias_(by_alias), keep_requires_grad_(keep_requires_grad) {}

    // First every operand is added, then each is asked for.
    void add(const at::Tensor& tensor, bool written);
    at::Tensor to_cpu(const at::Tensor& tensor, bool written);

    // After the kernel: data, sizes and storage of written operands reach the device.
    void write_back();
    // A result of the kernel as a device tensor: the operand itself, a view of one, or a new tensor.
    at::Tensor to_device(at::Tensor result, int device);

   private:
    struct Window {
        const c10::StorageImpl* storage;
        size_t low, high;
        bool written;
        c10::intrusive_ptr<c10::StorageImpl> host;
        const void* host_data;
    };
    struct Operand {
        at::Tensor device, host;
        bool written;
        int window;
    };

    int window_of(const c10::StorageImpl* storage);
    at::Tensor dense_to_cpu(const at::Tensor& tensor, bool written);
    at::Tensor sparse_to_cpu(const at::Tensor& tensor, bool written);
    at::Tensor sparse_to_device(const at::Tensor& result, int device);
    void write_back_alias(Operand& operand);
    void write_back_copy(Operand& operand);
    void write_back_sparse(Operand& operand);
    int64_t base(const Operand& operand) const;

    bool by_alias_, keep_requires_grad_;
    c10::SmallVector<Operand, 8> operands_;
    c10::SmallVector<Window, 4> windows_;
};

}  // namespace dipu
