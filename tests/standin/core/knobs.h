// Knobs for tests: settings, faults, and the place of complaints. Every stand-in library has them.
//
// A knob is an environment variable that is read when the library is loaded; `standin_set` changes the knob
// while the program runs. README.md lists the knobs.
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
// Returns a knob that is text; empty if it is not set.
std::string knob_text(const char *name);

// The calls of one function: their number, and whether the current call must fail.
class Call {
  public:
    explicit Call(const char *function);
    // Returns the code that FERRY_STANDIN_FAULT has for this call, or 0. "task" counts as one call per task.
    int enter();

    const char *const function;
    std::atomic<long> count{0};
    Call *next;
};

// True if FERRY_STANDIN_HANG names this copy; `out_ms` gets the milliseconds after which it resumes (-1:
// never).
bool hangs_now(long *out_ms);

// True in a child of the process that loaded the library; no function works there.
bool forked();

// Reports an action that the real library answers with undefined behaviour: prints it, writes it to the
// audit, and ends the process unless FERRY_STANDIN_VIOLATIONS is 0.
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Writes one line of the audit: an object that was not freed.
void leaked(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Returns the number of lines in the audit so far, violations included.
long complaints();

} // namespace standin

// Tests call these functions by dlsym. The environment is only read at the start.
STANDIN_API int standin_set(const char *knob, const char *value);
// Returns how often a function of the library was called.
STANDIN_API long standin_calls(const char *function);
// Resumes everything that hangs.
STANDIN_API void standin_release(void);
// Writes one line for each object that still exists to FERRY_STANDIN_AUDIT; returns the number of complaints
// so far. Each library has its own.
STANDIN_API long standin_audit(void);
