#include "share.h"
#include "knobs.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <sstream>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace standin {
namespace {

std::string directory() {
    std::string path = knob_text("FERRY_STANDIN_DIR");
    if (path.empty()) path = "/tmp/ferry-standin-" + std::to_string(getuid());
    mkdir(path.c_str(), 0700);
    return path + "/";
}

// A process that has ended and was not waited for does not count as living.
bool is_alive(int process) {
    char target[8];
    return readlink(("/proc/" + std::to_string(process) + "/exe").c_str(), target, sizeof target) >= 0;
}

} // namespace

std::string new_name() {
    unsigned char random[32];
    if (getrandom(random, sizeof random, 0) != sizeof random) abort();
    std::string out;
    for (const unsigned char byte : random) {
        char two[3];
        snprintf(two, sizeof two, "%02x", byte);
        out += two;
    }
    return out;
}

bool is_name(const std::string &name) {
    return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string read_note(const std::string &name) {
    std::ifstream file(directory() + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_note(const std::string &name, const std::string &text) {
    const std::string path = directory() + name, beside = path + ".new." + std::to_string(getpid());
    std::ofstream(beside) << text;
    rename(beside.c_str(), path.c_str());
}

void remove_note(const std::string &name) { unlink((directory() + name).c_str()); }

bool publish(const std::string &name, const Shared &shared) {
    std::ostringstream text;
    text << shared.process << ' ' << shared.file << ' ' << shared.size << ' ' << shared.device << ' ' << shared.page
         << ' ' << shared.anyone << '\n';
    write_note(name, text.str());
    return !read_note(name).empty();
}

bool look_up(const std::string &name, Shared *out) {
    std::istringstream text(read_note(name));
    text >> out->process >> out->file >> out->size >> out->device >> out->page >> out->anyone;
    return !text.fail() && is_alive(out->process);
}

void withdraw(const std::string &name) {
    DIR *all = opendir(directory().c_str());
    if (all == nullptr) return;
    while (const dirent *entry = readdir(all)) {
        if (strncmp(entry->d_name, name.c_str(), name.size()) == 0) remove_note(entry->d_name);
    }
    closedir(all);
}

void allow(const std::string &name, int process) { write_note(name + ".may." + std::to_string(process), "yes"); }

int driver_process() { return getpid() + static_cast<int>(knob(Knob::pid_offset)); }

bool is_allowed(const std::string &name, const Shared &shared) {
    return shared.anyone || !read_note(name + ".may." + std::to_string(driver_process())).empty();
}

void mark_open(const std::string &name, bool open) {
    const std::string mark = name + ".open." + std::to_string(getpid());
    open ? write_note(mark, "open") : remove_note(mark);
}

int openers(const std::string &name) {
    DIR *all = opendir(directory().c_str());
    if (all == nullptr) return 0;
    const std::string start = name + ".open.";
    int found = 0;
    while (const dirent *entry = readdir(all)) {
        if (strncmp(entry->d_name, start.c_str(), start.size()) != 0) continue;
        found += is_alive(atoi(entry->d_name + start.size()));
    }
    closedir(all);
    return found;
}

} // namespace standin
