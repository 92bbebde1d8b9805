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
    // The same memory in the mirror, the engine to which the agent's transfers to itself go; 0 before the first.
    ferry_region mirror = 0;
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
    explicit Target(std::shared_ptr<Region> own) : nixlBackendMD(false), own(std::move(own)) {}
    ferry_region remote = 0;
    std::shared_ptr<Region> own;
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
    // From now on, registers all memory in the mirror too, also the memory that is registered already. After an error,
    // no memory is in the mirror.
    nixl_status_t add_mirror(ferry_engine *mirror);

private:
    nixl_status_t mirror_region(Region &region);

    ferry_engine *const engine;
    ferry_engine *mirror = nullptr;
    std::mutex mutex;
    std::map<std::uintptr_t, std::shared_ptr<Region>> regions;
};

} // namespace ferry_nixl
