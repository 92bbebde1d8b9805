// Registered memory, and the metadata objects that the core keeps for it.
#pragma once

#include <ferry.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "nixl_abi.h"

namespace ferry_nixl {

// A region of the agent. NIXL lets an application register memory twice, and register parts of registered memory;
// ferry's regions don't overlap. So registrations share a region that covers them, and the last one ends it.
struct Region {
    std::uintptr_t address;
    std::size_t length;
    ferry_region handle;
    std::size_t uses = 1;
};

// The handle that registerMem gives out, and that getPublicData describes to peers.
struct Registration : nixlBackendMD {
    explicit Registration(std::shared_ptr<Region> region) : nixlBackendMD(true), region(std::move(region)) {}
    std::shared_ptr<Region> region;
};

// The handle that loadRemoteMD and loadLocalMD give out: the target's region. A request copies what it needs, because
// the core may unload the metadata while the request is under way.
struct Target : nixlBackendMD {
    explicit Target(ferry_region remote) : nixlBackendMD(false), remote(remote) {}
    ferry_region remote;
};

// The regions of an agent. Any thread may use them.
class Memory {
public:
    explicit Memory(ferry_engine *engine) : engine(engine) {}

    nixl_status_t add(const nixlBlobDesc &piece, std::shared_ptr<Region> &out);
    // True if no other registration needs the region.
    bool is_last(const Region &region);
    // Returns when nothing can reach the memory any more, unless another registration covers it.
    nixl_status_t remove(const std::shared_ptr<Region> &region);
private:
    ferry_engine *const engine;
    std::mutex mutex;
    std::map<std::uintptr_t, std::shared_ptr<Region>> regions;
};

} // namespace ferry_nixl
