#include "core.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

// The plugin recognises NIXL 1.0 and later by this symbol.
extern "C" __attribute__((visibility("default"))) void
_ZNK9nixlAgent11prepMemViewERK12nixlDescListI14nixlRemoteDescERPvPK21nixlAgentOptionalArgs()
{
}

namespace host {
namespace {

void check(nixl_status_t status, const char *what)
{
    if (status == NIXL_SUCCESS) return;
    std::fprintf(stderr, "%s: %d\n", what, status);
    std::abort();
}

} // namespace

nixlBackendPlugin *load(const std::string &path)
{
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::abort();
    }
    const auto init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(library, "nixl_plugin_init"));
    nixlBackendPlugin *plugin = init();
    // Not a tail call: the plugin looks up the library that the call returns to.
    asm volatile("" ::: "memory");
    return plugin;
}

// The same, for a copy of this library that a test opens by itself.
extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *host_load(const char *path) { return load(path); }

Backend create(nixlBackendPlugin *plugin, const std::string &agent, nixl_b_params_t parameters, const std::string &type)
{
    const nixlBackendInitParams init = {agent, type, &parameters, true, 0, 0, false};
    return Backend(plugin->create_engine(&init), Destroy{plugin});
}

nixlBackendMD *add(nixlBackendEngine &owner, void *at, std::size_t length)
{
    nixlBlobDesc piece;
    piece.addr = reinterpret_cast<std::uintptr_t>(at);
    piece.len = length;
    piece.devId = 0;
    nixlBackendMD *made = nullptr;
    check(owner.registerMem(piece, DRAM_SEG, made), "registerMem");
    return made;
}

Shared share(nixlBackendEngine &owner, const std::string &name, nixlBackendEngine &user, void *at, std::size_t length)
{
    Shared made;
    made.local = add(owner, at, length);
    nixlBlobDesc piece;
    piece.addr = reinterpret_cast<std::uintptr_t>(at);
    piece.len = length;
    piece.devId = 0;
    check(owner.getPublicData(made.local, piece.metaInfo), "getPublicData");
    check(user.loadRemoteMD(piece, DRAM_SEG, name, made.remote), "loadRemoteMD");
    return made;
}

void introduce(nixlBackendEngine &owner, const std::string &name, nixlBackendEngine &user)
{
    std::string info;
    check(owner.getConnInfo(info), "getConnInfo");
    check(user.loadRemoteConnInfo(name, info), "loadRemoteConnInfo");
}

} // namespace host
