// The functions behind `Services`.
#pragma once
#include <exception>

#include "plan.h"

namespace dicp {

/// `queues`: segments go to the device's queue instead of being called.
const Services* services(bool queues);

/// For a segment that a device's queue runs.
const Services* segment_services();

/// The first error of a run is the one that is raised.
void keep_error(Frame& frame, std::exception_ptr error);

}  // namespace dicp
