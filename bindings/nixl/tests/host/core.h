// A stand-in for NIXL's core: loads the plugin as the core does and calls its virtual functions, so that tests and
// measurements run without NIXL. `core.cpp` is a library of its own, because the plugin looks at the library that
// loads it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../../src/nixl_abi.h"

namespace host {

// The result of nixl_plugin_init of the library at `path`: nullptr if the plugin refuses. Never unloaded.
nixlBackendPlugin *load(const std::string &path);
using Load = nixlBackendPlugin *(*)(const char *path);

struct Destroy {
    nixlBackendPlugin *plugin;
    void operator()(nixlBackendEngine *engine) const { plugin->destroy_engine(engine); }
};
using Backend = std::unique_ptr<nixlBackendEngine, Destroy>;

Backend create(nixlBackendPlugin *plugin, const std::string &agent, nixl_b_params_t parameters = {},
               const std::string &type = "FERRY");

// A list of ranges, as it lies in the core's memory.
struct List {
    const void *vtable = nullptr;
    nixl_mem_t type = DRAM_SEG;
    std::vector<nixlMetaDesc> descs;
    const nixl_meta_dlist_t &get() const { return *reinterpret_cast<const nixl_meta_dlist_t *>(this); }
};

// Memory of agent `owner`, registered there and known to agent `user`.
struct Shared {
    nixlBackendMD *local = nullptr, *remote = nullptr;
};
Shared share(nixlBackendEngine &owner, const std::string &name, nixlBackendEngine &user, void *at, std::size_t length);
nixlBackendMD *add(nixlBackendEngine &owner, void *at, std::size_t length);
// Tells `user` how to reach agent `name`.
void introduce(nixlBackendEngine &owner, const std::string &name, nixlBackendEngine &user);

} // namespace host
