#include "plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/irange.h>
#include <dlfcn.h>

#include <algorithm>

#include "device_library.h"
#include "run.h"

namespace dicp {
namespace {

constexpr int64_t kAlignment = 64;
constexpr size_t kKept = 8;  // workspaces for calls in flight at once

/// The bytes from a tensor's first element to its last.
int64_t extent(at::IntArrayRef sizes, at::IntArrayRef strides) {
    int64_t last = 0;
    for (const auto dim : c10::irange(sizes.size())) {
        if (sizes[dim] == 0) return 0;
        last += (sizes[dim] - 1) * strides[dim];
    }
    return last + 1;
}

bool agrees(at::IntArrayRef given, const std::vector<int64_t>& wanted) {
    if (given.size() != wanted.size()) return false;
    for (const auto i : c10::irange(wanted.size()))
        if (wanted[i] >= 0 && wanted[i] != given[i]) return false;
    return true;
}

/// Strides of dimensions of one element say nothing.
bool strides_agree(const at::Tensor& given, const std::vector<int64_t>& wanted) {
    for (const auto i : c10::irange(wanted.size()))
        if (wanted[i] >= 0 && wanted[i] != given.stride(i) && given.size(i) != 1) return false;
    return true;
}

template <class Function>
Function symbol(void* handle, const char* name, const std::string& path) {
    void* found = dlsym(handle, name);
    TORCH_CHECK(found, path, " has no function ", name, ": it is no library that this version of dicp made");
    return reinterpret_cast<Function>(found);
}

}  // namespace

at::Tensor tensor_at(const Workspace& workspace, int value, char* pointer, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
    const at::Tensor& owner = workspace.tensors[value].defined() ? workspace.tensors[value] : workspace.arena;
    const auto bytes = pointer - static_cast<const char*>(owner.storage().data());
    const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
    TORCH_CHECK(bytes % itemsize == 0, "a tensor of ", dtype, " begins between two elements of its memory");
    const c10::DispatchKeySet key(c10::computeDispatchKey(dtype, std::nullopt, owner.device()));
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(owner.storage()), key, c10::scalarTypeToTypeMeta(dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, bytes / itemsize);
    return tensor;
}

Plan::Plan(const std::string& library) : path(library) {
    handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(handle_, "compiled code cannot be loaded: ", dlerror());
    plan_ = symbol<PlanFunction>(handle_, "dicp_plan", path);
    run_ = symbol<RunFunction>(handle_, "dicp_run", path);
    segment_ = symbol<SegmentFunction>(handle_, "dicp_segment", path);
}

Plan::~Plan() { dlclose(handle_); }

void Plan::finish() {
    const auto in_range = [](int number, int count, const char* what) {
        TORCH_CHECK(number >= 0 && number < count, what, " ", number, " is not among ", count);
    };
    TORCH_CHECK(values > static_cast<int>(inputs.size() + constants.size()), "there are fewer values than inputs and constants");
    for (const auto& slot : inputs) in_range(slot.place, arguments, "the argument");
    for (const int place : sizes) in_range(place, arguments, "the argument");
    for (const auto& slot : allocations) in_range(slot.value, values, "the value");
    for (const auto& slot : weights) in_range(slot.value, values, "the value");
    dims_ = 1;
    for (const auto& slot : allocations) dims_ += 2 * slot.rank;
    for (const auto& slot : outputs) {
        if (slot.kind == OutputSlot::Kind::view) dims_ += 2 * slot.rank + 1;
        if (slot.kind == OutputSlot::Kind::size) dims_ += 1;
        if (slot.kind == OutputSlot::Kind::whole || slot.kind == OutputSlot::Kind::view) in_range(slot.value, values, "the value");
    }
    for (auto& call : calls) {
        for (const auto& slot : call.slots)
            if (slot.dtype) in_range(slot.value, values, "the value");
        for (const auto& slot : call.results) in_range(slot.value, values, "the value");
        call.finish();
    }
    for (const auto& constant : constants) TORCH_CHECK(constant.device() == device, "a constant is on ", constant.device(), ", the graph on ", device);
    packed.resize(weights.size());
    if (!device.is_cpu()) on_device_ = std::make_unique<DeviceLibrary>(path, device);
}

std::unique_ptr<Workspace> Plan::take() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!free_.empty()) {
            auto found = std::move(free_.back());
            free_.pop_back();
            return found;
        }
    }
    auto made = std::make_unique<Workspace>();
    made->pointers.resize(values);
    made->tensors.resize(values);
    made->sizes.resize(sizes.size());
    made->dims.resize(dims_);
    made->cached.resize(calls.size());
    for (const auto i : c10::irange(constants.size())) {
        made->tensors[1 + inputs.size() + i] = constants[i];
        made->pointers[1 + inputs.size() + i] = static_cast<char*>(constants[i].data_ptr());
    }
    return made;
}

void Plan::give(std::unique_ptr<Workspace> workspace) {
    const size_t first = 1 + inputs.size(), behind = first + constants.size();
    for (const auto i : c10::irange(workspace->tensors.size()))
        if (i < first || i >= behind) workspace->tensors[i].reset();
    if (on_device_) {  // work that is still queued reads the arena; the device's allocator knows when another may
        workspace->arena.reset();
        for (auto& tensors : workspace->cached) tensors.clear();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < kKept) free_.push_back(std::move(workspace));
}

void Plan::bind_inputs(Workspace& workspace, std::vector<Argument>& given) const {
    TORCH_CHECK(given.size() == static_cast<size_t>(arguments), "the graph has ", arguments, " inputs; ", given.size(), " were given");
    int value = 1;
    for (const auto& slot : inputs) {
        auto& tensor = given[slot.place].tensor;
        TORCH_CHECK(tensor.defined() && tensor.device() == device && tensor.scalar_type() == slot.dtype && agrees(tensor.sizes(), slot.sizes), "input ",
                    slot.place, " is ",
                    tensor.defined() ? c10::str("a tensor of ", tensor.scalar_type(), tensor.sizes(), " on ", tensor.device()) : std::string("no tensor"),
                    "; the graph was compiled for ", slot.dtype, at::IntArrayRef(slot.sizes), " on ", device);
        if (!strides_agree(tensor, slot.strides) || tensor.is_neg() || tensor._is_zerotensor()) {
            TORCH_CHECK(!slot.written, "input ", slot.place, ", which the graph writes to, has the strides ", tensor.strides(),
                        "; the graph was compiled for ", at::IntArrayRef(slot.strides));
            std::vector<int64_t> strides(slot.strides);
            for (const auto i : c10::irange(strides.size()))
                if (strides[i] < 0) strides[i] = tensor.stride(i);
            tensor = at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
        }
        workspace.pointers[value] = static_cast<char*>(slot.written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr()));
        workspace.tensors[value++] = std::move(tensor);
    }
    for (const auto i : c10::irange(sizes.size())) workspace.sizes[i] = given[sizes[i]].number;
}

void Plan::allocate(Workspace& workspace) const {
    const int64_t* dims = workspace.dims.data();
    const int64_t bytes = *dims++;
    if (!workspace.arena.defined() || static_cast<int64_t>(workspace.arena.storage().nbytes()) < bytes + kAlignment)
        workspace.arena = at::empty({bytes + kAlignment}, at::TensorOptions(at::kByte).device(device));
    auto* begin = static_cast<char*>(workspace.arena.storage().mutable_data());
    workspace.pointers[0] = begin + (kAlignment - reinterpret_cast<uintptr_t>(begin) % kAlignment) % kAlignment;
    for (const auto& slot : allocations) {
        const at::IntArrayRef sizes(dims, slot.rank), strides(dims + slot.rank, slot.rank);
        dims += 2 * slot.rank;
        auto tensor = device.is_cpu() ? at::detail::empty_strided_cpu(sizes, strides, slot.dtype)
                                      : at::empty_strided(sizes, strides, at::TensorOptions(slot.dtype).device(device));
        workspace.pointers[slot.value] = static_cast<char*>(tensor.mutable_data_ptr());
        workspace.tensors[slot.value] = std::move(tensor);
    }
}

std::vector<Result> Plan::collect(const Workspace& workspace) const {
    const int64_t* dims = workspace.dims.data() + 1;
    for (const auto& slot : allocations) dims += 2 * slot.rank;
    std::vector<Result> results;
    results.reserve(outputs.size());
    for (const auto& slot : outputs) {
        switch (slot.kind) {
            case OutputSlot::Kind::whole: results.push_back({slot.kind, workspace.tensors[slot.value], 0}); break;
            case OutputSlot::Kind::none: results.push_back({slot.kind, {}, 0}); break;
            case OutputSlot::Kind::size: results.push_back({slot.kind, {}, *dims++}); break;
            case OutputSlot::Kind::view: {
                const at::IntArrayRef sizes(dims, slot.rank), strides(dims + slot.rank, slot.rank);
                const auto bytes = dims[2 * slot.rank] * static_cast<int64_t>(c10::elementSize(slot.dtype));
                dims += 2 * slot.rank + 1;
                const bool empty = extent(sizes, strides) == 0;
                results.push_back({slot.kind, tensor_at(workspace, slot.value, workspace.pointers[slot.value] + (empty ? 0 : bytes), slot.dtype, sizes, strides), 0});
            }
        }
    }
    return results;
}

std::vector<Result> Plan::run(std::vector<Argument>& given) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional<c10::Device>(device));
    auto workspace = take();
    std::exception_ptr error;
    std::vector<Result> results;
    try {
        bind_inputs(*workspace, given);
        plan_(workspace->sizes.data(), workspace->dims.data());
        allocate(*workspace);
        Frame frame{this, workspace.get(), nullptr};
        run_(workspace->pointers.data(), workspace->sizes.data(), services(on_device_ != nullptr), &frame);
        error = frame.error;
        if (!error) results = collect(*workspace);
    } catch (...) {
        error = std::current_exception();
    }
    give(std::move(workspace));
    if (error) std::rethrow_exception(error);
    return results;
}

void Plan::launch(Frame& frame, int64_t segment) { on_device_->launch(frame, segment); }

}  // namespace dicp
