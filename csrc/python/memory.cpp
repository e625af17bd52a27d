#include "memory.h"

#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>

#include "../runtime/allocator.h"
#include "../runtime/deferred_errors.h"
#include "../runtime/memory_check.h"
#include "../runtime/memory_history.h"
#include "../runtime/memory_pool.h"
#include "../runtime/memory_report.h"

namespace py = pybind11;

namespace {

// Dictionaries whose tracebacks are named together: a name is looked up once for all of them.
class Frames {
   public:
    void later(const py::dict& entry, const std::shared_ptr<c10::GatheredContext>& context) {
        entry["frames"] = py::list();
        if (!context) return;
        tracebacks_.push_back(torch::getCapturedTracebackFromContext(context));
        entries_.push_back(entry);
    }
    void fill_in() {
        if (entries_.empty()) return;
        const torch::SymbolizedTracebacks named = torch::symbolize(tracebacks_);
        std::vector<py::dict> frames;  // each once: a snapshot has very many tracebacks of few frames
        for (const auto& frame : named.all_frames) {
            py::dict entry;
            entry["filename"] = frame.filename;
            entry["name"] = frame.funcname;
            entry["line"] = frame.lineno;
            frames.push_back(std::move(entry));
        }
        for (size_t i = 0; i < entries_.size(); ++i) {
            py::list traceback;
            for (const uint64_t frame : named.tracebacks[i]) traceback.append(frames[frame]);
            entries_[i]["frames"] = traceback;
        }
    }

   private:
    std::vector<torch::CapturedTraceback*> tracebacks_;
    std::vector<py::dict> entries_;
};

const char* name_of(dipu::BlockState state) {
    switch (state) {
        case dipu::BlockState::InUse: return "active_allocated";
        case dipu::BlockState::Awaiting: return "active_awaiting_free";
        default: return "inactive";
    }
}

py::dict as_dict(const dipu::SegmentReport& segment, int device, Frames& frames) {
    size_t allocated = 0, active = 0, requested = 0;
    py::list blocks;
    for (const auto& block : segment.blocks) {
        const bool in_use = block.state == dipu::BlockState::InUse;
        const bool is_active = in_use || block.state == dipu::BlockState::Awaiting;
        allocated += in_use ? block.size : 0;
        active += is_active ? block.size : 0;
        requested += is_active ? block.requested : 0;
        py::dict entry;
        entry["address"] = block.address;
        entry["size"] = block.size;
        entry["requested_size"] = block.requested;
        entry["state"] = name_of(block.state);
        frames.later(entry, block.context);
        blocks.append(entry);
    }
    py::dict entry;
    entry["device"] = device;
    entry["address"] = segment.address;
    entry["total_size"] = segment.size;
    entry["allocated_size"] = allocated;
    entry["active_size"] = active;
    entry["requested_size"] = requested;
    entry["stream"] = segment.stream;
    entry["segment_type"] = segment.small ? "small" : "large";
    entry["segment_pool_id"] = py::make_tuple(0, 0);
    entry["is_expandable"] = false;
    entry["adopted"] = segment.adopted;
    frames.later(entry, segment.context);
    entry["blocks"] = blocks;
    return entry;
}

py::list segments(int device) {
    Frames frames;
    py::list found;
    for (const auto& segment : dipu::memory_segments(device)) found.append(as_dict(segment, device, frames));
    frames.fill_in();
    return found;
}

py::list events(int device) {
    Frames frames;
    py::list found;
    dipu::check_device(device);
    const std::vector<dipu::MemoryEvent> recorded = dipu::memory_events(device);
    for (const auto& event : recorded) {
        py::dict entry;
        entry["action"] = dipu::name_of(event.action);
        entry[event.action == dipu::MemoryAction::OutOfMemory ? "device_free" : "addr"] = event.address;
        entry["size"] = event.size;
        entry["stream"] = event.stream;
        entry["time_us"] = event.microseconds;
        entry["pool_id"] = py::make_tuple(0, 0);
        entry["compile_context"] = "N/A";
        entry["user_metadata"] = "";
        frames.later(entry, event.context);
        found.append(entry);
    }
    frames.fill_in();
    return found;
}

void record_history(bool enabled, bool with_events, int tracebacks, bool cpp, size_t most_events, std::vector<std::string> skipped, bool clear) {
    dipu::HistorySettings settings;
    settings.enabled = enabled;
    settings.events = with_events;
    settings.tracebacks = static_cast<dipu::TracebackFor>(std::clamp(tracebacks, 0, 3));
    settings.cpp = cpp;
    settings.most_events = most_events;
    settings.skipped = std::move(skipped);
    dipu::record_memory_history(std::move(settings), clear);
}

}  // namespace

void bind_memory(py::module_& m) {
    m.def("memory_segments", &segments);
    m.def("memory_events", &events);
    m.def("record_memory_history", &record_history, py::arg("enabled"), py::arg("events"), py::arg("tracebacks"), py::arg("cpp"),
          py::arg("most_events"), py::arg("skipped"), py::arg("clear"));
    m.def("choose_memory_algorithm", &dipu::choose_memory_algorithm);
    m.def("memory_check_report", &dipu::memory_check_report);
    m.def("name_call_sites", &dipu::name_call_sites);
    m.def("take_deferred_errors", &dipu::take_deferred_errors);
    m.def("set_memory_fraction", &dipu::set_memory_fraction);
    m.def("memory_fraction", &dipu::memory_fraction);
}
