#include "heartbeat.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lane.h"

namespace dipu {
namespace {

using namespace std::chrono_literals;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr auto kInterval = 500ms;   // between signs of life
constexpr auto kSilence = 2000ms;   // without one a rank counts as not responding
constexpr auto kPatience = 3200ms;  // for the whole roll call; the store may hang, too
constexpr auto kSpread = 1100ms;    // for the others to read what was found, before this process may end and take the store along

std::mutex owner_mutex;
std::string& owner() {
    static auto* text = new std::string;
    return *text;
}

// torch gives a prefix only as part of a key.
struct PrefixAccess : c10d::PrefixStore {
    using c10d::PrefixStore::joinKey;
};

// The store below all prefixes, and a prefix that stands for all of them.
StorePointer without_prefix(StorePointer store, std::string& prefix) {
    while (auto with_prefix = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store)) {
        prefix = (with_prefix.get()->*(&PrefixAccess::joinKey))(prefix);
        store = with_prefix->getUnderlyingStore();
    }
    return store;
}

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::optional<std::string> read(c10d::Store& store, const std::string& key) {
    if (!store.check({key})) return std::nullopt;
    const auto value = store.get(key);
    return std::string(value.begin(), value.end());
}

std::string unique_token() {
    std::random_device random;
    return std::to_string(getpid()) + "-" + std::to_string((uint64_t(random()) << 32) | random());
}

std::string list(const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
    return text;
}

}  // namespace

void set_store_owner(const std::string& description) {
    std::lock_guard<std::mutex> lock(owner_mutex);
    owner() = description;
}

// ---- one connection to the store, and a thread that tells signs of life over it ----

struct Membership::State {
    std::string prefix;
    int rank = 0;
    std::vector<int64_t> global_ranks;
    StorePointer origin;  // of which connections are made
    std::string token;    // of this process, under which its signs of life are
    OnFailure on_failure;

    std::mutex mutex;
    Progress progress;
    bool changed = true, busy = false, failed = false;
    std::shared_ptr<class Heartbeats> heartbeats;

    std::string key(const std::string& name) const { return prefix + name; }
    std::string encoded() {
        return token + '\n' + std::to_string(progress.called) + '\n' + std::to_string(progress.finished) + '\n' + progress.call + '\n' +
               progress.message;
    }
};

class Heartbeats : public std::enable_shared_from_this<Heartbeats> {
 public:
    explicit Heartbeats(const StorePointer& origin) : origin_(origin), token_(unique_token()) {}

    static std::shared_ptr<Heartbeats> of(const StorePointer& origin) {
        static auto* mutex = new std::mutex;
        static auto* all = new std::map<c10d::Store*, std::weak_ptr<Heartbeats>>;
        std::lock_guard<std::mutex> lock(*mutex);
        auto& known = (*all)[origin.get()];
        auto found = known.lock();
        if (!found) {
            known = found = std::make_shared<Heartbeats>(origin);
            found->start();
        }
        return found;
    }

    const std::string& token() const { return token_; }
    static std::string key_of(const std::string& token) { return "dicl/alive/" + token; }

    void add(const std::shared_ptr<Membership::State>& member) {
        std::lock_guard<std::mutex> lock(mutex_);
        members_.push_back(member);
        wake_.notify_all();
    }

    // Tells the thread to end; it has a moment to do so, and is left behind if the store hangs.
    void stop() {
        std::unique_lock<std::mutex> lock(mutex_);
        stop_ = true;
        wake_.notify_all();
        ended_signal_.wait_for(lock, 500ms, [&] { return ended_; });
    }

 private:
    void start() {
        std::thread([self = shared_from_this()] { self->run(); }).detach();
    }

    void run() {
        pthread_setname_np(pthread_self(), "dicl heartbeat");
        try {
            const StorePointer store = origin_->clone();
            uint64_t beat = 0;
            std::unique_lock<std::mutex> lock(mutex_);
            while (!stop_) {
                auto members = current();
                if (members.empty() && beat > 0) break;
                lock.unlock();
                store->set(key_of(token_), bytes(std::to_string(++beat)));
                for (const auto& member : members) visit(*store, *member);
                members.clear();
                lock.lock();
                wake_.wait_for(lock, kInterval, [&] { return stop_; });
            }
        } catch (const std::exception&) {
            // The store is gone: at the end of the job, or with its rank. Whoever asks it next is told.
        }
        std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
        ended_signal_.notify_all();
    }

    std::vector<std::shared_ptr<Membership::State>> current() {
        std::vector<std::shared_ptr<Membership::State>> living;
        std::vector<std::weak_ptr<Membership::State>> kept;
        for (const auto& member : members_)
            if (auto state = member.lock()) {
                living.push_back(state);
                kept.push_back(member);
            }
        members_ = std::move(kept);
        return living;
    }

    static void visit(c10d::Store& store, Membership::State& member) {
        std::string text;
        bool ask = false;
        {
            std::lock_guard<std::mutex> lock(member.mutex);
            if (member.changed) text = member.encoded();
            member.changed = false;
            ask = member.busy && !member.failed;
        }
        if (!text.empty()) store.set(member.key("rank " + std::to_string(member.rank)), bytes(text));
        if (!ask) return;
        const auto reason = read(store, member.key("failure"));
        if (!reason) return;
        {
            std::lock_guard<std::mutex> lock(member.mutex);
            member.failed = true;
        }
        member.on_failure(*reason);
    }

    const StorePointer origin_;
    const std::string token_;
    std::mutex mutex_;
    std::condition_variable wake_, ended_signal_;
    std::vector<std::weak_ptr<Membership::State>> members_;
    bool stop_ = false, ended_ = false;
};

// ---- one group ----

Membership::Membership(StorePointer store, int rank, std::vector<int64_t> global_ranks, OnFailure on_failure)
    : state_(std::make_shared<State>()) {
    std::string prefix = "dicl/";
    state_->origin = without_prefix(std::move(store), prefix);
    state_->prefix = prefix;
    state_->rank = rank;
    state_->global_ranks = std::move(global_ranks);
    state_->on_failure = std::move(on_failure);
    state_->heartbeats = Heartbeats::of(state_->origin);
    state_->token = state_->heartbeats->token();
    state_->heartbeats->add(state_);
}

Membership::~Membership() {
    auto heartbeats = std::move(state_->heartbeats);
    state_.reset();
    if (heartbeats.use_count() <= 2) heartbeats->stop();  // this one and the thread's
}

void Membership::called(bool collective, uint64_t sequence, const char* name, std::string described) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (collective) {
        state_->progress.called = sequence;
        state_->progress.call = std::move(described);
    } else {
        state_->progress.message = std::move(described);
    }
    state_->changed = true;
}

void Membership::finished(uint64_t sequence) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->progress.finished = std::max(state_->progress.finished, sequence);
    state_->changed = true;
}

void Membership::set_busy(bool busy) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->busy = busy;
}

std::string Membership::rank_name(int rank) const {
    const auto& global = state_->global_ranks;
    return "rank " + std::to_string(static_cast<size_t>(rank) < global.size() ? global[rank] : rank);
}

namespace {

struct Found {
    bool joined = false, alive = false;
    uint64_t called = 0;
    std::string call, message;
};

// Looks twice for each rank's sign of life.
std::vector<Found> look(c10d::Store& store, const Membership::State& state, size_t ranks) {
    std::vector<Found> found(ranks);
    std::vector<std::string> tokens(ranks), first(ranks);
    const auto ask = [&](size_t rank) { return read(store, state.key("rank " + std::to_string(rank))); };
    const auto beat = [&](size_t rank) { return read(store, Heartbeats::key_of(tokens[rank])).value_or(""); };
    for (size_t rank = 0; rank < ranks; ++rank) {
        const auto text = ask(rank);
        if (!text) continue;
        found[rank].joined = true;
        tokens[rank] = text->substr(0, text->find('\n'));
        first[rank] = beat(rank);
    }
    std::this_thread::sleep_for(kSilence);
    for (size_t rank = 0; rank < ranks; ++rank) {
        if (!found[rank].joined) continue;
        found[rank].alive = beat(rank) != first[rank];
        std::istringstream lines(ask(rank).value_or(""));
        std::string token, called, finished;
        std::getline(lines, token) && std::getline(lines, called) && std::getline(lines, finished) && std::getline(lines, found[rank].call) &&
            std::getline(lines, found[rank].message);
        found[rank].called = std::strtoull(called.c_str(), nullptr, 10);
    }
    return found;
}

std::string last_call(const Found& rank) {
    std::string text = rank.call.empty() ? "it has called no collective of the group" : "its last call is " + rank.call;
    if (!rank.message.empty()) text += ", its last message " + rank.message;
    return text;
}

}  // namespace

std::string Membership::roll_call(bool collective, uint64_t sequence, const char* name) {
    const size_t ranks = state_->global_ranks.size();
    auto answer = std::make_shared<std::promise<std::vector<Found>>>();
    auto ready = answer->get_future();
    run_in_background([answer, state = state_, ranks] {
        try {
            answer->set_value(look(*state->origin->clone(), *state, ranks));
        } catch (...) {
            answer->set_exception(std::current_exception());
        }
    });
    std::vector<Found> found;
    try {
        if (ready.wait_for(kPatience) == std::future_status::ready) found = ready.get();
    } catch (const std::exception&) {
        // told below
    }
    if (found.empty()) {
        std::lock_guard<std::mutex> lock(owner_mutex);
        return "the store, through which ranks find each other, does not answer: " + owner();
    }
    std::vector<std::string> arrived;
    std::string missing;
    for (size_t rank = 0; rank < ranks; ++rank) {
        const bool self = static_cast<int>(rank) == state_->rank;
        if (collective && (self || found[rank].called >= sequence)) arrived.push_back(rank_name(static_cast<int>(rank)));
        if (self) continue;
        const std::string who = "\n  " + rank_name(static_cast<int>(rank));
        if (!found[rank].joined)
            missing += who + " never joined the group";
        else if (!found[rank].alive)
            missing += who + " does not respond (killed, stopped, or cut off from the store); " + last_call(found[rank]);
        else if (collective && found[rank].called < sequence)
            missing += who + " lives and did not call it; " + last_call(found[rank]);
        else if (collective && found[rank].called == sequence && found[rank].call.find(std::string(name) + " (") != 0)
            missing += who + " called another operation: " + found[rank].call;
        else if (!collective)
            missing += who + " lives; " + last_call(found[rank]);
    }
    std::string text;
    if (collective) text = "Arrived: " + list(arrived) + ".";
    if (missing.empty()) return text + " All ranks live and called it.";
    return text + " Not in order:" + missing;
}

std::string Membership::write_down(const std::string& reason) {
    {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->failed = true;
    }
    auto answer = std::make_shared<std::promise<std::string>>();
    auto ready = answer->get_future();
    run_in_background([answer, state = state_, reason] {
        try {
            const auto store = state->origin->clone();
            const auto written = store->compareSet(state->key("failure"), std::vector<uint8_t>{}, bytes(reason));
            answer->set_value(std::string(written.begin(), written.end()));
        } catch (...) {
            answer->set_value(reason);
        }
    });
    if (ready.wait_for(1s) != std::future_status::ready) return reason;
    const std::string written = ready.get();
    if (written == reason) std::this_thread::sleep_for(kSpread);
    return written.empty() ? reason : written;
}

}  // namespace dipu
