// What a test can turn: settings, faults, and where complaints go. Every stand-in library has this.
//
// A knob is an environment variable that is read when the library is loaded; `standin_set` changes it
// while the program runs. README.md lists them.
#pragma once

#include <atomic>
#include <string>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace standin {

enum class Knob {
    devices,      // how many devices there are
    memory_mb,    // memory of each device; 0: no bound
    copy_us,      // each copy takes this long, and
    gbps,         // ... this rate on top; 0: no bound
    peer,         // whether devices can reach one another
    pcie,         // Ascend: IPC keys can't be imported
    fabric,       // Ascend: fabric handles work (A3)
    posix_fd,     // CUDA: handles can be exported as file descriptors
    ipc,          // CUDA: whether IPC handles work
    integrated,   // CUDA: the device shares the host's memory
    sticky,       // CUDA: every context is in this error
    pid_offset,   // Ascend: the driver's numbers of processes are this much higher
    dma_buf,      // CUDA: whether there are dma-bufs of device memory
    ordered,      // CUDA: for whom what a NIC has written needs no flush: 0, 100 or 200, as the attribute has it
    violations,   // 1: a violation ends the process; 0: it is noted and the program goes on
    count_,
};

long knob(Knob which);
// The text of a knob that is no number; empty where it is not set.
std::string knob_text(const char *name);

// One function's calls: how many there were, and whether this one is to fail.
class Call {
  public:
    explicit Call(const char *function);
    // The code that FERRY_STANDIN_FAULT has for this call, or 0. Also asked for "task", once a task.
    int enter();

    const char *const function;
    std::atomic<long> count{0};
    Call *next;
};

// Whether the n-th copy of FERRY_STANDIN_HANG is this one, and after how many milliseconds it goes on
// (-1: never).
bool hangs_now(long *out_ms);

// This process is a child of the one that loaded the library: nothing of it works here.
bool forked();

// Somebody did what the real library answers with undefined behaviour: said aloud, written to the audit,
// and the end of the process unless FERRY_STANDIN_VIOLATIONS is 0.
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
// One line of the audit: a thing that was not given back.
void leaked(const char *format, ...) __attribute__((format(printf, 1, 2)));
// How many lines the audit has written so far, violations among them.
long complaints();

} // namespace standin

// Tests call these by dlsym. The environment is only read at the start.
STANDIN_API int standin_set(const char *knob, const char *value);
// How often a function of the library was called.
STANDIN_API long standin_calls(const char *function);
// Lets everything that hangs go on.
STANDIN_API void standin_release(void);
// Writes one line for each thing that still exists to FERRY_STANDIN_AUDIT; says how many complaints there
// are so far. Each library has its own.
STANDIN_API long standin_audit(void);
