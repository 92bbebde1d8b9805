// Streams and events: one worker thread for each stream, which does its tasks in order. What a stream
// waits for (time, an event, a value in memory) is waited for under one lock, so that it can be aborted.
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

// One recording of an event. Whoever waits for it holds on to it, whatever becomes of the event.
struct Record {
    enum { pending, complete, aborted } state = pending;
    Clock::time_point when;
};
using RecordRef = std::shared_ptr<Record>;

class Stream;
struct Task {
    // The code that the stream fails with, or 0. Runs on the worker, without the lock.
    std::function<int(Stream &)> run;
    // Always called, after `run` or in its place when the task was dropped.
    std::function<void(bool dropped)> done;
};

class Stream {
  public:
    Stream(void *context, int device);
    // Does what is queued first.
    ~Stream();

    void push(Task task);
    Outcome wait(Deadline deadline);
    bool idle();
    // Stops the running task, drops the others and waits until none of them can do anything any more.
    // Who waits for the stream is told `aborted`.
    void abort();
    // The first code that a task failed with since it was last asked for.
    int take_error();
    // Nothing is done any more behind a task that has failed, and the code stays.
    void stop_on_failure();
    // Why nothing is done any more, or 0.
    int stopped();

    // For tasks: false if the stream is aborted meanwhile. `pause` ends after the time; `pause_until` when
    // `ready` says so, which is asked under the lock whenever something changes, and every `poll_us` if given.
    bool pause(long us);
    bool pause_until(const std::function<bool()> &ready, long poll_us = 0);
    bool hang(long ms);

    void *const context;
    const int device;
    // Also told of a task's code, if it is set before the first task.
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

// A new recording, complete when the stream gets there.
RecordRef record(Stream &stream);
Outcome wait_for(const RecordRef &record, Deadline deadline);
bool is_complete(const RecordRef &record);
// What is queued after this starts when the recording is complete; never, if it was aborted.
void stream_wait(Stream &stream, const RecordRef &record);

// The delays of the knobs for a copy of that size. False: aborted.
bool spend_copy_time(Stream &stream, size_t bytes);
void spend_copy_time(size_t bytes);
// Queues a copy of resolved memory, and waits for it if `synchronous`. `outcome` of the wait, or done.
Outcome queue_copy(Stream &stream, const Span &target, const Span &source, bool synchronous);

} // namespace standin
