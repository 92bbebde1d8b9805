// Checks for the stand-ins' own tests, and other processes to test against: this program again, in another
// role, controlled by lines.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        printf("%s:%d: ", __FILE__, __LINE__);                                                                         \
        printf(__VA_ARGS__);                                                                                           \
        putchar('\n');                                                                                                 \
        fflush(stdout);                                                                                                \
        _exit(1);                                                                                                      \
    } while (0)
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) FAIL("not so: %s", #condition);                                                              \
    } while (0)
#define EXPECT(expected, call)                                                                                         \
    do {                                                                                                               \
        const long got_ = (call);                                                                                      \
        if (got_ != static_cast<long>(expected)) FAIL("%s is %ld, not %s", #call, got_, #expected);                    \
    } while (0)
#define OK(call) EXPECT(0, call)

extern "C" int standin_set(const char *knob, const char *value);
extern "C" long standin_calls(const char *function);
extern "C" void standin_release(void);
extern "C" long standin_audit(void);

// Where each 8 bytes say where they belong.
inline void fill(void *memory, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size / 8; i++) static_cast<uint64_t *>(memory)[i] = seed + i;
}
inline bool is_filled(const void *memory, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size / 8; i++) {
        if (static_cast<const uint64_t *>(memory)[i] != seed + i) return false;
    }
    return true;
}

inline long now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

class Other {
  public:
    explicit Other(std::vector<std::string> role) {
        int in[2], out[2];
        CHECK(pipe(in) == 0 && pipe(out) == 0);
        fflush(stdout);
        process = fork();
        if (process == 0) {
            dup2(in[0], 0);
            dup2(out[1], 3);
            close(in[1]);
            close(out[0]);
            std::vector<char *> arguments = {const_cast<char *>("other")};
            for (std::string &word : role) arguments.push_back(&word[0]);
            arguments.push_back(nullptr);
            execv("/proc/self/exe", arguments.data());
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = fdopen(in[1], "w");
        from_ = fdopen(out[0], "r");
    }
    void say(const std::string &line) {
        fprintf(to_, "%s\n", line.c_str());
        fflush(to_);
    }
    std::string hear() {
        char line[512];
        if (fgets(line, sizeof line, from_) == nullptr) FAIL("the other process said nothing");
        line[strcspn(line, "\n")] = '\0';
        return line;
    }
    // Returns how it ended, in waitpid's form.
    int end() {
        fclose(to_);
        int status;
        CHECK(waitpid(process, &status, 0) == process);
        fclose(from_);
        return status;
    }
    pid_t process;

  private:
    FILE *to_, *from_;
};
// The other side of the connection.
inline std::string heard() {
    char line[512];
    if (fgets(line, sizeof line, stdin) == nullptr) _exit(0);
    line[strcspn(line, "\n")] = '\0';
    return line;
}
inline void said(const std::string &line) {
    CHECK(write(3, (line + "\n").c_str(), line.size() + 1) == static_cast<ssize_t>(line.size() + 1));
}

// Runs a role whose end is expected: a signal, or a sanitizer's report of one.
inline void expect_crash(const char *role) {
    Other other({role});
    const int status = other.end();
    if (!WIFSIGNALED(status)) FAIL("%s ended with %d, and not by a signal", role, WEXITSTATUS(status));
}

inline std::string read_file(const std::string &path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
}
