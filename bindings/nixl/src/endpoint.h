// One engine of ferry with its event queue, and the information that peers need to reach it.
#pragma once

#include <ferry.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "settings.h"

namespace ferry_nixl {

// An agent's connection information. NIXL sends notifications without a transfer and without waiting, but ferry
// attaches notifications to transfers. So such a notification goes with a WRITE to `mailbox`, memory of the engine
// whose contents mean nothing.
struct Address {
    std::string descriptor;
    std::uint64_t mailbox = 0;
    ferry_region mailbox_region = 0;

    std::string encode() const;
    // Returns false if the bytes are not from this plugin.
    static bool decode(const std::string &bytes, Address &out);
};

class Notification;

// The notifications that are on their way, by the number that the event of their end returns. Any thread may use it.
class Underway {
public:
    std::uint64_t add(std::shared_ptr<Notification> notification);
    std::shared_ptr<Notification> take(std::uint64_t number);

private:
    std::mutex mutex;
    std::map<std::uint64_t, std::shared_ptr<Notification>> by_number;
    std::uint64_t next = 1;
};

class Endpoint {
public:
    // Returns nullptr and a sentence in `why` if the engine does not open.
    static std::unique_ptr<Endpoint> open(const ferry_config *config, std::string &why);
    // Ends the engine: afterwards it touches no memory. All threads that use it must have ended.
    ~Endpoint();
    Endpoint(const Endpoint &) = delete;
    Endpoint &operator=(const Endpoint &) = delete;

    // Makes every transfer final, and ends every wait. A second call does nothing.
    void close();

    ferry_engine *engine = nullptr;
    ferry_queue queue = 0;
    int readable = -1;
    Address address;
    mutable Underway underway;

private:
    Endpoint() = default;
    ferry_status prepare(const ferry_config *config, ferry_error &error);
    std::uint64_t mailbox = 0;
};

} // namespace ferry_nixl
