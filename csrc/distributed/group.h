// The operations of one process group: started in order, completed once, and refused after the group failed.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "heartbeat.h"
#include "lane.h"
#include "transport.h"
#include "work.h"

namespace dipu {

struct GroupIdentity {
    std::string name;
    int rank, size;
    std::vector<int64_t> global_ranks;
};

class CommunicationGroup : public std::enable_shared_from_this<CommunicationGroup> {
 public:
    static std::shared_ptr<CommunicationGroup> make(std::unique_ptr<Transport> transport, GroupIdentity identity,
                                                    c10::intrusive_ptr<c10d::Store> store);

    // Numbers the operation and remembers what its stream has queued.
    void call(Operation& operation);
    // Runs it behind what was started on its lane before.
    void start(std::shared_ptr<Operation> operation);
    uint64_t sequence() const;

    // All operations that are not finished fail, and all that come, too.
    void fail(const std::string& reason);
    bool failed() const;
    // Gives the transport up, too.
    void abort(const std::string& reason);
    // False if operations were still under way after `limit`.
    bool drain(std::chrono::milliseconds limit);

 private:
    CommunicationGroup(std::unique_ptr<Transport> transport, GroupIdentity identity);

    void run(Operation& operation);
    void complete(Operation& operation, std::exception_ptr error);
    std::string explain(Operation& operation, const std::string& why, std::chrono::steady_clock::time_point begin);
    void refuse_after_failure() const;

    const std::unique_ptr<Transport> transport_;
    const GroupIdentity identity_;
    std::unique_ptr<Membership> membership_;

    mutable std::mutex mutex_;
    std::condition_variable completed_;
    std::map<std::string, std::shared_ptr<Lane>> lanes_;
    std::set<std::shared_ptr<Operation>> under_way_;
    uint64_t collectives_ = 0, messages_ = 0;
    std::string failure_;
};

}  // namespace dipu
