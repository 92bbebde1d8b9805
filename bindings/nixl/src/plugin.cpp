// The symbols that NIXL's core looks up in libplugin_FERRY.so, and calls before it makes a backend.
#include <ferry.h>

#include <exception>

#include "engine.h"
#include "guard.h"
#include "log.h"
#include "settings.h"

namespace {

// No exception may reach the core, for example that of a failed allocation.
nixlBackendEngine *create(const nixlBackendInitParams *init)
{
    try {
        return ferry_nixl::Engine::open(*init);
    } catch (const std::exception &error) {
        ferry_nixl::log(ferry_nixl::Level::Error, std::string("no backend: ") + error.what());
        return nullptr;
    }
}

void destroy(nixlBackendEngine *engine) { delete engine; }
const char *name() { return "FERRY"; }
const char *version() { return ferry_version(); }
nixl_b_params_t options() { return ferry_nixl::parameters(); }
nixl_mem_list_t mems() { return ferry_nixl::Engine::supported(); }

constexpr int API_VERSION = 1;

} // namespace

extern "C" {

__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
    static nixlBackendPlugin plugin = {API_VERSION, create, destroy, name, version, options, mems};
    const std::string why = ferry_nixl::why_not(__builtin_return_address(0));
    if (why.empty()) return &plugin;
    ferry_nixl::log(ferry_nixl::Level::Error, why);
    return nullptr;
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
