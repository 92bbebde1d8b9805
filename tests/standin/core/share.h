// Memory that processes share. A record in FERRY_STANDIN_DIR names the memfd of a living process; empty files
// beside it name the processes that may open it and those that have it open.
//
//   NAME            the record: process, descriptor, bytes, device, page
//   NAME.may.PID    a process on the whitelist
//   NAME.open.PID   a process that has it open
#pragma once

#include "memory.h"

#include <string>

namespace standin {

struct Shared {
    int process = 0, file = -1, device = 0;
    bool anyone = false; // no whitelist
    size_t size = 0, page = page_bytes;
};

// Returns 64 hexadecimal digits that no other process has.
std::string new_name();
bool is_name(const std::string &name);
bool publish(const std::string &name, const Shared &shared);
void withdraw(const std::string &name);
// Reads a record; false if it does not exist, or the process that made it is gone.
bool look_up(const std::string &name, Shared *out);
void allow(const std::string &name, int process);
// Returns the driver's number of this process, which whitelists hold: FERRY_STANDIN_PID_OFFSET above getpid.
int driver_process();
bool is_allowed(const std::string &name, const Shared &shared);
void mark_open(const std::string &name, bool open);
// Returns the living processes that have the record open.
int openers(const std::string &name);

// A small file that other processes read, replaced as a whole; empty if it does not exist.
std::string read_note(const std::string &name);
void write_note(const std::string &name, const std::string &text);
void remove_note(const std::string &name);

} // namespace standin
