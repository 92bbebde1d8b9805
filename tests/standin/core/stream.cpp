#include "stream.h"
#include "knobs.h"

#include <atomic>

namespace standin {
namespace {

// The lock for every change of a stream or event. Never destroyed: workers outlive the library's destructors.
struct Changes {
    std::mutex lock;
    std::condition_variable any;
    std::atomic<long> releases{0};
};
Changes &changes() {
    static Changes *const made = new Changes;
    return *made;
}
using Hold = std::unique_lock<std::mutex>;

// Waits until `ready` returns true; false if the deadline has passed first.
bool wait_changes(Hold &hold, const Deadline &deadline, const std::function<bool()> &ready) {
    if (!deadline.endless) return changes().any.wait_until(hold, deadline.at, ready);
    changes().any.wait(hold, ready);
    return true;
}

std::chrono::microseconds copy_time(size_t bytes) {
    const long gbps = knob(Knob::gbps);
    const double rate_us = gbps == 0 ? 0 : static_cast<double>(bytes) * 8 / (static_cast<double>(gbps) * 1000);
    return std::chrono::microseconds(knob(Knob::copy_us) + static_cast<long>(rate_us));
}

// Counts tasks: faults named "task" hit the n-th task of any stream.
int task_fault() {
    static Call call("task");
    return call.enter();
}

} // namespace

Stream::Stream(void *owner, int on) : context(owner), device(on), worker_([this] { work(); }) {}

Stream::~Stream() {
    {
        const Hold hold(changes().lock);
        ending_ = true;
        changes().any.notify_all();
    }
    worker_.join();
}

void Stream::push(Task task) {
    const Hold hold(changes().lock);
    queue_.push_back(std::move(task));
    pushed_++;
    changes().any.notify_all();
}

void Stream::work() {
    Hold hold(changes().lock);
    while (true) {
        changes().any.wait(hold, [&] { return !queue_.empty() || ending_; });
        if (queue_.empty()) return;
        Task task = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        int code = 0;
        const bool stopped = stops_ && error_ != 0;
        if (aborting_ == 0 && !stopped) {
            hold.unlock();
            code = task_fault();
            if (code == 0) code = task.run(*this);
            hold.lock();
        }
        const bool dropped = aborting_ != 0 || stopped;
        if (code != 0 && error_ == 0) error_ = code;
        if (code != 0 && error_sink != nullptr) *error_sink = code;
        hold.unlock();
        task.done(dropped);
        task = Task();
        hold.lock();
        busy_ = false;
        finished_++;
        changes().any.notify_all();
    }
}

Outcome Stream::wait(Deadline deadline) {
    Hold hold(changes().lock);
    const uint64_t aborts = abort_count_, ticket = pushed_;
    const bool ended = wait_changes(hold, deadline, [&] { return abort_count_ != aborts || finished_ >= ticket; });
    if (!ended) return Outcome::timed_out;
    if (abort_count_ != aborts) return Outcome::aborted;
    return error_ != 0 ? Outcome::failed : Outcome::done;
}

bool Stream::idle() {
    const Hold hold(changes().lock);
    return finished_ == pushed_;
}

void Stream::abort() {
    Hold hold(changes().lock);
    aborting_++;
    std::deque<Task> dropped;
    dropped.swap(queue_);
    changes().any.notify_all();
    changes().any.wait(hold, [&] { return !busy_; });
    hold.unlock();
    for (Task &task : dropped) task.done(true);
    hold.lock();
    finished_ += dropped.size();
    aborting_--;
    abort_count_++;
    changes().any.notify_all();
}

int Stream::take_error() {
    const Hold hold(changes().lock);
    const int code = error_;
    if (!stops_) error_ = 0;
    return code;
}

void Stream::stop_on_failure() {
    const Hold hold(changes().lock);
    stops_ = true;
}

int Stream::stopped() {
    const Hold hold(changes().lock);
    return stops_ ? error_ : 0;
}

bool Stream::pause(long us) {
    Hold hold(changes().lock);
    changes().any.wait_for(hold, std::chrono::microseconds(us), [&] { return aborting_ != 0; });
    return aborting_ == 0;
}

bool Stream::pause_until(const std::function<bool()> &ready, long poll_us) {
    Hold hold(changes().lock);
    const auto over = [&] { return aborting_ != 0 || ready(); };
    if (poll_us == 0) changes().any.wait(hold, over);
    while (poll_us != 0 && !changes().any.wait_for(hold, std::chrono::microseconds(poll_us), over)) {
    }
    return aborting_ == 0;
}

bool Stream::hang(long ms) {
    Hold hold(changes().lock);
    const long before = changes().releases;
    wait_changes(hold, Deadline(ms), [&] { return aborting_ != 0 || changes().releases != before; });
    return aborting_ == 0;
}

RecordRef record(Stream &stream) {
    auto made = std::make_shared<Record>();
    stream.push({[](Stream &) { return 0; },
                 [made](bool dropped) {
                     const Hold hold(changes().lock);
                     made->state = dropped ? Record::aborted : Record::complete;
                     made->when = Clock::now();
                     changes().any.notify_all();
                 }});
    return made;
}

Outcome wait_for(const RecordRef &record, Deadline deadline) {
    Hold hold(changes().lock);
    if (!wait_changes(hold, deadline, [&] { return record->state != Record::pending; })) return Outcome::timed_out;
    return record->state == Record::complete ? Outcome::done : Outcome::aborted;
}

bool is_complete(const RecordRef &record) {
    const Hold hold(changes().lock);
    return record->state == Record::complete;
}

void stream_wait(Stream &stream, const RecordRef &record) {
    stream.push({[record](Stream &own) {
                     own.pause_until([&] { return record->state == Record::complete; });
                     return 0;
                 },
                 [](bool) {}});
}

bool spend_copy_time(Stream &stream, size_t bytes) {
    long ms;
    if (hangs_now(&ms) && !stream.hang(ms)) return false;
    const auto time = copy_time(bytes);
    return time.count() == 0 || stream.pause(time.count());
}

void spend_copy_time(size_t bytes) {
    const auto time = copy_time(bytes);
    if (time.count() != 0) std::this_thread::sleep_for(time);
}

Outcome queue_copy(Stream &stream, const Span &target, const Span &source, bool synchronous) {
    enter(target);
    enter(source);
    stream.push({[target, source](Stream &own) {
                     if (spend_copy_time(own, source.size)) copy_spans(target, source);
                     return 0;
                 },
                 [target, source](bool) {
                     leave(target);
                     leave(source);
                 }});
    return synchronous ? stream.wait(Deadline(-1)) : Outcome::done;
}

} // namespace standin

void standin_release(void) {
    standin::changes().releases++;
    const standin::Hold hold(standin::changes().lock);
    standin::changes().any.notify_all();
}
