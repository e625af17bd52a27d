// The stream on which communication copies.
#pragma once
#include "../runtime/device.h"

namespace dipu {

// The calling thread works on the communication stream of `device` (-1: on no device) until the end of the scope. What is queued there
// never waits for another stream, so a collective gets on while all other streams of the device wait for it.
class OnCommunicationStream {
   public:
    explicit OnCommunicationStream(int device) : device_(device) {
        if (device_ < 0) return;
        previous_device_ = exchange_device(device_);
        previous_stream_ = exchange_stream(device_, kCommunicationStream);
    }
    ~OnCommunicationStream() {
        if (device_ < 0) return;
        exchange_stream(device_, previous_stream_);
        set_device(previous_device_);
    }
    OnCommunicationStream(const OnCommunicationStream&) = delete;
    OnCommunicationStream& operator=(const OnCommunicationStream&) = delete;

   private:
    int device_;
    int previous_device_ = 0;
    int64_t previous_stream_ = 0;
};

}  // namespace dipu
