// Shared by the suite's files: agents of this process, and their transfers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "core.h"

namespace suite {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
// Arguments of the program: the plugin, and the folder of copies of the core.
inline std::string plugin_path, folder;

inline nixlBackendPlugin *plugin()
{
    static nixlBackendPlugin *const loaded = host::load(plugin_path);
    return loaded;
}

inline host::Backend agent(const std::string &name, nixl_b_params_t parameters = {})
{
    host::Backend made = host::create(plugin(), name, std::move(parameters));
    EXPECT_NE(made, nullptr);
    return made;
}

inline host::List list(const void *at, std::size_t length, nixlBackendMD *metadata)
{
    host::List made;
    made.descs.push_back({{reinterpret_cast<std::uintptr_t>(at), length, 0}, metadata});
    return made;
}

inline nixl_status_t finish(nixlBackendEngine &engine, nixlBackendReqH *handle, nixl_status_t status)
{
    const auto last = Clock::now() + 30s;
    while (status == NIXL_IN_PROG && Clock::now() < last) status = engine.checkXfer(handle);
    return status;
}

inline nixl_status_t run(nixlBackendEngine &engine, nixlBackendReqH *&handle, const nixlBackendOptionalArgs *options = nullptr)
{
    const host::List none;
    return finish(engine, handle, engine.postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, options));
}

inline nixlBackendReqH *prepare(nixlBackendEngine &engine, nixl_xfer_op_t op, const host::List &local, const host::List &remote,
                         const std::string &peer)
{
    nixlBackendReqH *handle = nullptr;
    EXPECT_EQ(engine.prepXfer(op, local.get(), remote.get(), peer, handle, nullptr), NIXL_SUCCESS);
    return handle;
}

inline notif_list_t notices(nixlBackendEngine &engine, std::size_t count)
{
    notif_list_t all;
    for (const auto last = Clock::now() + 30s; all.size() < count && Clock::now() < last;) {
        notif_list_t some;
        EXPECT_EQ(engine.getNotifs(some), NIXL_SUCCESS);
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

// Two agents of one process, of which `a` knows `b` and its memory.
struct Pair {
    explicit Pair(const nixl_b_params_t &parameters = {}, std::size_t words = 1 << 14)
        : here(words), there(words), a(agent("a", parameters)), b(agent("b", parameters))
    {
        std::iota(here.begin(), here.end(), 1);
        host::introduce(*b, "b", *a);
        local = host::add(*a, here.data(), bytes());
        memory = host::share(*b, "b", *a, there.data(), bytes());
    }
    std::size_t bytes() const { return here.size() * 8; }
    nixlBackendReqH *write() { return prepare(*a, NIXL_WRITE, list(here.data(), bytes(), local),
                                              list(there.data(), bytes(), memory.remote), "b"); }
    std::vector<std::uint64_t> here, there;
    host::Backend a, b;
    nixlBackendMD *local;
    host::Shared memory;
};

} // namespace suite
