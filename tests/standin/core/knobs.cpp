#include "knobs.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <unistd.h>
#include <vector>

namespace standin {
namespace {

struct Row {
    const char *name;
    long initial;
};
const Row rows[] = {
    {"FERRY_STANDIN_DEVICES", 2},  {"FERRY_STANDIN_MEMORY_MB", 0}, {"FERRY_STANDIN_COPY_US", 0},
    {"FERRY_STANDIN_GBPS", 0},     {"FERRY_STANDIN_PEER", 1},      {"FERRY_STANDIN_PCIE", 0},
    {"FERRY_STANDIN_FABRIC", 0},   {"FERRY_STANDIN_POSIX_FD", 1},  {"FERRY_STANDIN_IPC", 1},
    {"FERRY_STANDIN_INTEGRATED", 0}, {"FERRY_STANDIN_STICKY", 0},  {"FERRY_STANDIN_PID_OFFSET", 0},
    {"FERRY_STANDIN_DMA_BUF", 0},  {"FERRY_STANDIN_ORDERED", 100}, {"FERRY_STANDIN_VIOLATIONS", 1},
};
constexpr size_t row_count = static_cast<size_t>(Knob::count_);
static_assert(sizeof rows / sizeof rows[0] == row_count, "a row for each knob");
const char *const texts[] = {"FERRY_STANDIN_SOC", "FERRY_STANDIN_DIR", "FERRY_STANDIN_AUDIT",
                             "FERRY_STANDIN_POINTER"};

struct Fault {
    std::string function;
    long countdown; // 0: every call
    int code;
};

struct State {
    std::mutex lock;
    std::atomic<long> numbers[row_count];
    std::map<std::string, std::string> text;
    std::vector<Fault> faults;
    std::atomic<bool> any_fault{false};
    long hang_countdown = 0, hang_ms = -1;
    std::atomic<long> complaints{0};
    std::atomic<Call *> calls{nullptr};
    pid_t process = getpid();

    State();
    bool set(const char *name, const char *value);
};

// Never destroyed: worker threads outlive the destructors of the library.
State &state() {
    static State *const made = new State;
    return *made;
}

// Parses "name:n:code,…": n counts from now, `*` means every call. A malformed list is the test's mistake.
bool parse_faults(const char *value, std::vector<Fault> *out) {
    std::string rest = value;
    while (!rest.empty()) {
        const size_t comma = rest.find(',');
        const std::string one = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        const size_t first = one.find(':'), second = one.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) return false;
        const std::string nth = one.substr(first + 1, second - first - 1);
        const long countdown = nth == "*" ? 0 : atol(nth.c_str());
        if (nth != "*" && countdown < 1) return false;
        out->push_back({one.substr(0, first), countdown, atoi(one.c_str() + second + 1)});
    }
    return true;
}

bool State::set(const char *name, const char *value) {
    const std::lock_guard<std::mutex> hold(lock);
    for (size_t i = 0; i < row_count; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        numbers[i] = *value ? atol(value) : rows[i].initial;
        return true;
    }
    for (const char *known : texts) {
        if (strcmp(known, name) != 0) continue;
        text[name] = value;
        return true;
    }
    if (strcmp(name, "FERRY_STANDIN_FAULT") == 0) {
        std::vector<Fault> parsed;
        if (!parse_faults(value, &parsed)) return false;
        faults = parsed;
        any_fault = !faults.empty();
        return true;
    }
    if (strcmp(name, "FERRY_STANDIN_HANG") == 0) { // n[:ms]
        hang_countdown = atol(value);
        const char *colon = strchr(value, ':');
        hang_ms = colon ? atol(colon + 1) : -1;
        return true;
    }
    return false;
}

State::State() {
    for (size_t i = 0; i < row_count; i++) numbers[i] = rows[i].initial;
    std::vector<const char *> names = {"FERRY_STANDIN_FAULT", "FERRY_STANDIN_HANG"};
    for (const Row &row : rows) names.push_back(row.name);
    names.insert(names.end(), std::begin(texts), std::end(texts));
    for (const char *name : names) {
        const char *value = getenv(name);
        if (value != nullptr && !set(name, value)) {
            fprintf(stderr, "stand-in: %s=%s can't be read\n", name, value);
            abort();
        }
    }
    // A test that looks for the file finds it even without complaints.
    const std::string &audit = text["FERRY_STANDIN_AUDIT"];
    if (!audit.empty()) close(open(audit.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

void write_line(const char *kind, const char *format, va_list arguments) {
    char line[512];
    int length = snprintf(line, sizeof line, "%d %s ", getpid(), kind);
    length += vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
    line[length++] = '\n';
    state().complaints++;
    const std::string path = knob_text("FERRY_STANDIN_AUDIT");
    const int file = path.empty() ? -1 : open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0) {
        if (write(file, line, length) != length) perror("stand-in: audit");
        close(file);
    }
    if (file < 0 || strcmp(kind, "violation") == 0) fprintf(stderr, "stand-in: %.*s", length, line);
}

} // namespace

long knob(Knob which) {
    return state().numbers[static_cast<size_t>(which)];
}

std::string knob_text(const char *name) {
    State &all = state();
    const std::lock_guard<std::mutex> hold(all.lock);
    const auto found = all.text.find(name);
    return found == all.text.end() ? std::string() : found->second;
}

Call::Call(const char *function_name) : function(function_name), next(state().calls) {
    while (!state().calls.compare_exchange_weak(next, this)) {
    }
}

int Call::enter() {
    count++;
    State &all = state();
    if (!all.any_fault) return 0;
    const std::lock_guard<std::mutex> hold(all.lock);
    for (Fault &fault : all.faults) {
        if (fault.function != function || fault.countdown < 0) continue;
        if (fault.countdown == 0) return fault.code;
        if (--fault.countdown == 0) {
            fault.countdown = -1;
            return fault.code;
        }
    }
    return 0;
}

bool hangs_now(long *out_ms) {
    State &all = state();
    const std::lock_guard<std::mutex> hold(all.lock);
    if (all.hang_countdown <= 0 || --all.hang_countdown != 0) return false;
    *out_ms = all.hang_ms;
    return true;
}

bool forked() {
    return state().process != getpid();
}

void violation(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line("violation", format, arguments);
    va_end(arguments);
    if (knob(Knob::violations) != 0) abort();
}

void leaked(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line("leak", format, arguments);
    va_end(arguments);
}

long complaints() {
    return state().complaints;
}

} // namespace standin

int standin_set(const char *name, const char *value) {
    return standin::state().set(name, value) ? 0 : -1;
}

long standin_calls(const char *function) {
    for (standin::Call *one = standin::state().calls; one != nullptr; one = one->next) {
        if (strcmp(one->function, function) == 0) return one->count;
    }
    return 0;
}
