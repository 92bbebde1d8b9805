// Measures what the plugin adds to ferry's C interface: both sides alternate, in one process, with the same settings.
//
//   overhead PLUGIN [ROUNDS [TRANSPORTS]]
//
// Prints a line for each row, fields separated by tabs: "nixl", transports, what, C's median, the plugin's, both in
// microseconds, and the medians of the paired differences and ratios. C's side is ferry_write for one block, and
// submits and waits for more; the plugin's side posts and asks until the transfer is done, as NIXL's users do.
#include <ferry.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "core.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t BLOCK = 4096, BLOCKS = 1 << 17;

void must(bool good, const char *what)
{
    if (good) return;
    std::fprintf(stderr, "overhead: %s\n", what);
    std::exit(1);
}

double median(std::vector<double> of)
{
    std::nth_element(of.begin(), of.begin() + of.size() / 2, of.end());
    return of[of.size() / 2];
}

struct Bench {
    Bench(const char *plugin_path, const std::string &transports)
        : here(BLOCK / 8 * BLOCKS), there(BLOCK / 8 * BLOCKS), plugin(host::load(plugin_path)),
          source(host::create(plugin, "source", {{"transports", transports}})),
          target(host::create(plugin, "target", {{"transports", transports}}))
    {
        std::iota(here.begin(), here.end(), 1);
        const std::size_t bytes = BLOCK * BLOCKS;
        local = host::add(*source, here.data(), bytes);
        remote = host::share(*target, "target", *source, there.data(), bytes).remote;
        host::introduce(*target, "target", *source);
        must(source->connect("target") == NIXL_SUCCESS, "the agents do not connect");

        ferry_config *config;
        must(ferry_config_new(&config, nullptr) == FERRY_OK, "no configuration");
        ferry_config_set(config, "transports", transports.c_str(), nullptr);
        must(ferry_engine_open(config, &from, nullptr) == FERRY_OK && ferry_engine_open(config, &to, nullptr) == FERRY_OK,
             "no engine");
        ferry_config_free(config);
        ferry_region mine;
        must(ferry_region_register(from, here.data(), bytes, nullptr, &mine, nullptr) == FERRY_OK &&
                 ferry_region_register(to, there.data(), bytes, nullptr, &region, nullptr) == FERRY_OK,
             "no region");
        char address[300];
        std::size_t length;
        must(ferry_engine_address(to, address, sizeof address, &length, nullptr) == FERRY_OK, "no address");
        must(ferry_peer_connect(from, address, 10'000'000'000, &peer, nullptr) == FERRY_OK, "the engines do not connect");
    }

    // Blocks of which nothing merges, in a random order.
    void choose(std::size_t count)
    {
        std::vector<std::size_t> ids(BLOCKS);
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), std::mt19937_64(count));
        blocks.descs.clear();
        theirs.descs.clear();
        requests.clear();
        for (std::size_t i = 0; i < count; i++) {
            const std::uint64_t offset = ids[i] * BLOCK;
            const std::uint64_t mine = reinterpret_cast<std::uint64_t>(here.data()) + offset;
            const std::uint64_t other = reinterpret_cast<std::uint64_t>(there.data()) + offset;
            blocks.descs.push_back({{mine, BLOCK, 0}, local});
            theirs.descs.push_back({{other, BLOCK, 0}, remote});
            requests.push_back({mine, other, BLOCK, region});
        }
    }

    double by_c(bool post_only)
    {
        ferry_transfer transfer;
        const auto start = Clock::now();
        if (requests.size() == 1) {
            must(ferry_write(from, peer, requests.data(), 1, nullptr, nullptr, nullptr) == FERRY_OK, "a WRITE failed");
            return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        }
        must(ferry_transfer_submit(from, peer, FERRY_OP_WRITE, requests.data(), requests.size(), nullptr, &transfer,
                                   nullptr) == FERRY_OK, "submit failed");
        const auto posted = Clock::now();
        must(ferry_transfer_wait(from, transfer, FERRY_FOREVER, nullptr, nullptr) == FERRY_OK, "a transfer failed");
        ferry_transfer_release(from, transfer, nullptr);
        return std::chrono::duration<double, std::micro>((post_only ? posted : Clock::now()) - start).count();
    }

    double by_plugin(bool post_only)
    {
        const auto start = Clock::now();
        nixl_status_t status = source->postXfer(NIXL_WRITE, blocks.get(), theirs.get(), "target", handle, nullptr);
        const auto posted = Clock::now();
        while (status == NIXL_IN_PROG) status = source->checkXfer(handle);
        const auto end = Clock::now();
        must(status == NIXL_SUCCESS, "a transfer failed");
        return std::chrono::duration<double, std::micro>((post_only ? posted : end) - start).count();
    }

    void row(const char *transports, const char *what, std::size_t count, int repeats, bool post_only, int rounds)
    {
        choose(count);
        must(source->prepXfer(NIXL_WRITE, blocks.get(), theirs.get(), "target", handle, nullptr) == NIXL_SUCCESS, "prep");
        std::vector<double> c, own, more, ratio;
        for (int round = 0; round < rounds; round++) {
            double sums[2] = {0, 0};
            std::fill(there.begin(), there.end(), 0);
            for (int i = 0; i < repeats; i++)
                for (int side : {i % 2, 1 - i % 2}) sums[side] += side == 0 ? by_c(post_only) : by_plugin(post_only);
            for (const nixlMetaDesc &block : theirs.descs)
                must(std::memcmp(reinterpret_cast<void *>(block.addr),
                                 here.data() + (block.addr - reinterpret_cast<std::uintptr_t>(there.data())) / 8, BLOCK) == 0,
                     "the data is wrong");
            c.push_back(sums[0] / repeats);
            own.push_back(sums[1] / repeats);
            more.push_back(own.back() - c.back());
            ratio.push_back(own.back() / c.back());
        }
        must(source->releaseReqH(handle) == NIXL_SUCCESS, "release");
        std::printf("nixl\t%s\t%s\t%.2f\t%.2f\t%+.2f\t%.3f\n", transports, what, median(c), median(own), median(more),
                    median(ratio));
    }

    std::vector<std::uint64_t> here, there;
    nixlBackendPlugin *plugin;
    host::Backend source, target;
    nixlBackendMD *local, *remote;
    ferry_engine *from = nullptr, *to = nullptr;
    ferry_region region = 0;
    ferry_peer peer = 0;
    host::List blocks, theirs;
    std::vector<ferry_request> requests;
    nixlBackendReqH *handle = nullptr;
};

} // namespace

int main(int argc, char **argv)
{
    must(argc > 1, "usage: overhead PLUGIN [ROUNDS [TRANSPORTS]]");
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
    const char *transports = argc > 3 ? argv[3] : "tcp";
    Bench bench(argv[1], transports);
    bench.row(transports, "a WRITE of 4 KiB, us", 1, 500, false, rounds);
    bench.row(transports, "1,024 scattered blocks of 4 KiB, us", 1024, 20, false, rounds);
    bench.row(transports, "100,000 scattered blocks, posted, us", 100'000, 2, true, rounds);
    return 0;
}
