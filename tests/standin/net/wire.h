// One-sided copies over a TCP connection of this host: one end asks, the other serves its regions. A thread
// of the target's process does the work that a NIC does without the target's CPU.
#pragma once

#include "../core/stream.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace net {

struct Region {
    uint64_t address, size;
    int32_t type; // DEVICE 0, HOST 1
    char tag[60];
};
bool is_inside(const std::vector<Region> &regions, const void *address, uint64_t size);
// `type` is that of the memory, and the memory is there.
bool is_memory(int32_t type, const void *address, uint64_t size);

// Listens on 127.0.0.1, whatever address the program names; returns -1, or a descriptor. Port 0 means any
// port.
int listen_on(uint16_t port, int backlog);
uint16_t port_of(int listener);
enum class Dial { done, refused, timed_out };
Dial dial(uint16_t port, standin::Deadline deadline, int *out);

// Serves one connection until it ends. The client first sends `greeting` bytes, which must be one of
// `accepted`.
class Server {
  public:
    Server(int connection, std::vector<Region> regions, std::vector<std::string> accepted);
    ~Server();
    bool ended() const { return ended_; }

  private:
    void serve();
    bool answer();
    const int connection_;
    const std::vector<Region> regions_;
    const std::vector<std::string> accepted_;
    std::atomic<bool> ended_{false};
    std::thread thread_;
};

// The asking end. One call at a time; after false the connection is unusable.
class Client {
  public:
    explicit Client(int connection) : connection_(connection) {}
    ~Client();
    bool greet(const std::string &greeting);
    bool list(std::vector<Region> *out);
    bool put(uint64_t remote, const void *local, uint64_t size);
    bool get(uint64_t remote, void *local, uint64_t size);
    // Makes a call in progress fail.
    void cut();

  private:
    std::mutex one_;
    const int connection_;
};

} // namespace net
