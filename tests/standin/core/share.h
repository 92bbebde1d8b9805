// What one process shares with others: a record in FERRY_STANDIN_DIR names the memfd of a living process,
// and empty files beside it say who may open it and who has.
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

// 64 hexadecimal digits that nobody else has.
std::string new_name();
bool is_name(const std::string &name);
bool publish(const std::string &name, const Shared &shared);
void withdraw(const std::string &name);
// False if there is no such record, or the process that made it is gone.
bool look_up(const std::string &name, Shared *out);
void allow(const std::string &name, int process);
// This process as the driver counts it, which whitelists hold: FERRY_STANDIN_PID_OFFSET away from getpid.
int driver_process();
bool is_allowed(const std::string &name, const Shared &shared);
void mark_open(const std::string &name, bool open);
// Living processes that have it open.
int openers(const std::string &name);

// A small file for others to find, replaced as a whole; empty if there is none.
std::string read_note(const std::string &name);
void write_note(const std::string &name, const std::string &text);
void remove_note(const std::string &name);

} // namespace standin
