// Mistakes that the compiler refuses. run.sh compiles this file without a CASE, which succeeds, and with each: the
// compiler's message must have the words behind the case's number.
#include <ferry_kv.hpp>

namespace kv = ferry::kv;

// The same calls as they should be.
inline void accepted(const ferry::Engine &engine, const ferry::Peer &peer, const ferry::Request &request,
                     const kv::Id &id)
{
    const std::string told = "layer " + std::to_string(7);
    const std::vector<std::uint32_t> ids = {1, 2};
    ferry::TransferOptions options;
    options.notify(told).notify("layer 7").notify(std::string_view(told).substr(1)).notify(told.c_str()).notify(ids);
    (void)peer.write(request, ferry::TransferOptions().notify(told));
    (void)peer.notify("layer " + std::to_string(7));
    (void)engine.alloc(64, ferry::AllocOptions().name("kv"));
    (void)kv::BlockList(ids);
    (void)kv::BlockList(ferry::Span<const std::uint32_t>(ids.data(), 1));
    (void)to_string(id);
}

inline void refused(const ferry::Engine &engine, const ferry::Peer &peer, const ferry::Request &request,
                    ferry::TransferOptions &options, ferry::UniformBlocks &blocks)
{
    const std::vector<std::int32_t> from = {1};
    const auto ids = [] { return std::vector<std::uint32_t>{1}; };
    void *address = nullptr;
    (void)engine, (void)peer, (void)request, (void)options, (void)blocks, (void)from, (void)ids, (void)address;
#if CASE == 1 // a temporary is gone
    options.notify("layer " + std::to_string(7));
#elif CASE == 2 // a temporary is gone
    options.notify(ids());
#elif CASE == 3 // a temporary is gone
    (void)engine.alloc(64, ferry::AllocOptions().name("kv " + std::to_string(7)));
#elif CASE == 4 // a temporary is gone
    const kv::BlockList list(ids());
#elif CASE == 5 // a temporary is gone
    ferry::DirectoryOptions().ca_file(std::string("/etc/ca"));
#elif CASE == 6 // keep the ids in variables
    (void)blocks.pairs(from, std::vector<std::int32_t>{2});
#elif CASE == 7 // a temporary is gone
    const kv::BlockList list({1, 2});
#elif CASE == 8 // cannot convert|no matching function
    (void)peer.submit(FERRY_OP_WRITE, request);
#elif CASE == 9 // cannot convert|no matching function
    kv::TakeOptions().mode(1);
#elif CASE == 10 // cast the address to a pointer to the type of the elements
    (void)kv::Layer::of("layers.0", "block token element", address, {1, 1, 1});
#elif CASE == 11 // nodiscard|warn_unused
    peer.write(request);
#elif CASE == 12 // is private
    (void)kv::Group(FERRY_KV_GROUP_FULL, 1);
#elif CASE == 13 // deleted
    ferry::Engine copy = engine;
#elif CASE == 14 // a number of another type
    const std::uint16_t one = 1;
    const kv::BlockList list(one);
#endif
}
