// Shared by the files of this library: its state, and the checks that every call begins with.
#pragma once

#include "../core/knobs.h"
#include "../core/memory.h"
#include "../core/share.h"
#include "../core/stream.h"
#include "acl.h"
#include "below.h"

#include <map>
#include <mutex>
#include <set>

namespace ascend {

using namespace standin;

constexpr int devices_max = 64;

// The version of CANN that this library is: 81, 83, 85, 90 or 91. profile.cpp.
extern const int cann_version;

struct Context {
    int device;
    bool is_default;
    StreamRef stream; // what NULL means
};
struct Event {
    bool sync; // made for streams to wait for
    RecordRef last;
};
// Physical memory: allocated here, or imported.
struct Physical {
    std::shared_ptr<Backing> backing;
    size_t size;
    int references = 1;
    int mappings = 0;
    bool imported = false;
    std::string name; // under which it was exported or imported
};
struct Export { // of an IPC key
    uintptr_t base;
    uint64_t id;
};

struct State {
    std::recursive_mutex lock; // of what follows; taken before any lock of core, never after
    bool initialised = false;
    uint64_t references = 0; // aclInit, also repeated, without aclFinalizeReference
    int device_uses[devices_max] = {}; // SetDevice without ResetDevice
    Context *defaults[devices_max] = {};
    std::set<Context *> contexts;
    std::map<void *, StreamRef> streams; // by handle; default streams have none
    std::set<Event *> events;
    std::set<Physical *> physical;
    Reservations reservations;
    std::map<uintptr_t, uintptr_t> registrations; // host address to shadow
    std::map<std::string, Export> exports;        // IPC keys
    std::map<std::string, uintptr_t> imports;     // IPC keys to addresses
    uint64_t peers[devices_max] = {};             // bit p of d: d may reach p
};
State &state();
using Hold = std::lock_guard<std::recursive_mutex>;

extern thread_local Context *current;

// Stores the reason for aclGetRecentErrMsg.
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Checks for faults, use before aclInit, and use after fork.
int enter_call(Call &call);
// Also checks that a context exists.
int enter_with_context(Call &call);
#define ENTER()                                                                                                        \
    static Call call(__func__);                                                                                        \
    if (const int refused = enter_call(call)) return refused
#define ENTER_WITH_CONTEXT()                                                                                           \
    static Call call(__func__);                                                                                        \
    if (const int refused = enter_with_context(call)) return refused
#define CHECK_ARGUMENT(condition)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: not so: %s", __func__, #condition);             \
    } while (0)

bool is_device(int device);
bool may_reach(int from, int to);
// Returns the file of a stream handle; `code` has the error of a wrong handle.
StreamRef stream_of(void *handle, int *code);
int outcome_code(Stream &stream, Outcome outcome, int timeout_code);
// Ends the context's streams. The lock is held.
void end_context(Context *context);

// Frees a range that tasks may still use: a violation.
void check_unused(const Range &range, const char *what);
// Unmaps and forgets an import; the lock is held.
void close_import(const std::string &key);

} // namespace ascend
