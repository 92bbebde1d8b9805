// Streams and events. Each stream has one worker thread, which runs its tasks in order. All waits of a stream
// (for time, an event, a value in memory) use one lock, so that they can be aborted.
#pragma once

#include "memory.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace standin {

using Clock = std::chrono::steady_clock;
// Negative: for ever.
struct Deadline {
    explicit Deadline(long ms) : endless(ms < 0), at(Clock::now() + std::chrono::milliseconds(ms < 0 ? 0 : ms)) {}
    bool endless;
    Clock::time_point at;
};

enum class Outcome { done, failed, timed_out, aborted };

// One recording of an event. Its waiters keep it alive, whatever happens to the event.
struct Record {
    enum { pending, complete, aborted } state = pending;
    Clock::time_point when;
};
using RecordRef = std::shared_ptr<Record>;

class Stream;
struct Task {
    // Returns the code with which the stream fails, or 0. Runs on the worker, without the lock.
    std::function<int(Stream &)> run;
    // Always called: after `run`, or instead of `run` if the task was dropped.
    std::function<void(bool dropped)> done;
};

class Stream {
  public:
    Stream(void *context, int device);
    // Runs the queued tasks first.
    ~Stream();

    void push(Task task);
    Outcome wait(Deadline deadline);
    bool idle();
    // Stops the running task, drops the others and waits until none of them can have an effect any more.
    // Threads that wait for the stream get `aborted`.
    void abort();
    // Returns the first code with which a task failed since the last call.
    int take_error();
    // After a failed task no further task runs, and the code stays.
    void stop_on_failure();
    // Returns the code that stopped the stream, or 0.
    int stopped();

    // For tasks; false if the stream is aborted during the wait. `pause` ends after the time; `pause_until`
    // when `ready` returns true, which is called under the lock at each change, and every `poll_us` if that
    // is given.
    bool pause(long us);
    bool pause_until(const std::function<bool()> &ready, long poll_us = 0);
    bool hang(long ms);

    void *const context;
    const int device;
    // Also gets a task's code, if it is set before the first task.
    std::atomic<int> *error_sink = nullptr;

  private:
    void work();

    std::deque<Task> queue_;
    bool busy_ = false, ending_ = false;
    int aborting_ = 0; // threads in `abort`
    uint64_t pushed_ = 0, finished_ = 0, abort_count_ = 0;
    int error_ = 0;
    bool stops_ = false;
    std::thread worker_;
};
using StreamRef = std::shared_ptr<Stream>;

// Makes a new recording, which is complete when the stream reaches it.
RecordRef record(Stream &stream);
Outcome wait_for(const RecordRef &record, Deadline deadline);
bool is_complete(const RecordRef &record);
// Later tasks start when the recording is complete; never, if it was aborted.
void stream_wait(Stream &stream, const RecordRef &record);

// Waits the knobs' delays for a copy of this size; false if aborted.
bool spend_copy_time(Stream &stream, size_t bytes);
void spend_copy_time(size_t bytes);
// Queues a copy of resolved memory, and waits for it if `synchronous`. `outcome` is that of the wait, or
// done.
Outcome queue_copy(Stream &stream, const Span &target, const Span &source, bool synchronous);

} // namespace standin
