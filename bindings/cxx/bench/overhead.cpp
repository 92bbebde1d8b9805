// Measures what ferry.hpp adds to ferry.h, between two engines of one process on the same-host path: a
// synchronous 64 B WRITE, and the submission of 100,000 pairs of blocks that do not merge. C and C++
// alternate, each first in every second round; difference and ratio are taken per round. The data is checked.
//
// usage: overhead [rounds [calls]]
//
// Prints a line for each measurement, fields separated by tabs, medians in nanoseconds:
//     overhead  what  side  C  side's own  difference  ratio
#include <ferry.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>

namespace {

constexpr std::size_t bytes = 64, pairs = 100000;

void must(bool ok, const char *what)
{
    if (ok) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

template <class Work> double nanoseconds(Work &&work)
{
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values)
{
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

// Both sides return nanoseconds.
void compare(const char *what, const char *side, int rounds, const std::function<double()> &c,
             const std::function<double()> &own)
{
    std::vector<double> in_c, in_own, more, ratio;
    c(), own();
    for (int round = 0; round < rounds; round++) {
        const bool c_first = round % 2 == 0;
        const double first = c_first ? c() : own(), second = c_first ? own() : c();
        in_c.push_back(c_first ? first : second);
        in_own.push_back(c_first ? second : first);
        more.push_back(in_own.back() - in_c.back());
        ratio.push_back(in_own.back() / in_c.back());
    }
    std::printf("overhead\t%s\t%s\t%.1f\t%.1f\t%+.1f\t%.3f\n", what, side, median(in_c), median(in_own), median(more),
                median(ratio));
}

// Repeats a WRITE, each time of another word.
void writes(const ferry::Engine &a, const ferry::Engine &b, int rounds, std::size_t calls)
{
    const ferry::Memory local = a.alloc(4096).value(), remote = b.alloc(4096, ferry::AllocOptions().name("b")).value();
    const ferry::Peer peer = a.connect(b.address().value()).value();
    const ferry::Request request = ferry::request(local.data(), bytes, peer.region("b").value());
    std::uint64_t *word = local.as<std::uint64_t>().data();
    const auto per_call = [&](auto &&write) {
        return nanoseconds([&] {
                   for (std::size_t i = 0; i < calls; i++) {
                       ++*word;
                       must(write(), "a WRITE failed");
                   }
               }) /
               static_cast<double>(calls);
    };
    const auto in_c = [&] { // as a C program does it: one ferry_error for all calls
        static ferry_error error = {sizeof(ferry_error), 0, 0, 0, 0, 0, 0, {0}};
        ferry_engine *engine = peer.engine();
        const ferry_peer handle = peer.handle();
        return per_call([&] { return ferry_write(engine, handle, &request, 1, nullptr, nullptr, &error) == FERRY_OK; });
    };
    compare("write", "C++", rounds, in_c, [&] { return per_call([&] { return peer.write(request).ok(); }); });
    compare("write", "C++ with value()", rounds, in_c, [&] {
        return per_call([&] {
            peer.write(request).value();
            return true;
        });
    });
    must(remote.as<std::uint64_t>()[0] == *word, "the last WRITE is not there");
    for (const ferry::PathInfo &path : peer.paths().value())
        if (path.chosen) std::printf("path %u: %s\n", path.transport, path.why);
}

// Every second block at the target, so that no pairs merge. The wait for the end is not timed.
void blocks(const ferry::Engine &a, const ferry::Engine &b, int rounds)
{
    const ferry::Memory local = a.alloc(pairs * bytes).value(),
                        remote = b.alloc(2 * pairs * bytes, ferry::AllocOptions().name("inbox")).value();
    const ferry::Peer peer = a.connect(b.address().value()).value();
    peer.probe().value(); // after it the region has been announced
    const ferry::RegionInfo inbox = peer.region("inbox").value();
    std::iota(local.as<std::uint64_t>().begin(), local.as<std::uint64_t>().end(), 1);
    std::vector<std::int64_t> from(pairs), to(pairs);
    std::iota(from.begin(), from.end(), 0);
    std::transform(from.begin(), from.end(), to.begin(), [](std::int64_t id) { return 2 * id; });
    const std::uint64_t base = reinterpret_cast<std::uintptr_t>(local.data()), size = bytes;
    const ferry::BlockLayers layers = {base, inbox.address, size, size, size, inbox.region};
    const ferry::Blocks held = ferry::Blocks::create(layers, from, to).value();
    const auto in_c = [&] {
        ferry_error error = {sizeof(ferry_error), 0, 0, 0, 0, 0, 0, {0}};
        ferry_transfer transfer = 0;
        const double taken = nanoseconds([&] {
            must(ferry_transfer_submit_blocks(a.handle(), peer.handle(), FERRY_OP_WRITE, held.c(), nullptr, &transfer,
                                              &error) == FERRY_OK,
                 "a submission failed");
        });
        ferry::Transfer(a.handle(), transfer).wait().value();
        return taken;
    };
    compare("submit_blocks", "C++", rounds, in_c, [&] {
        ferry::Transfer transfer;
        const double taken = nanoseconds([&] {
            transfer = peer.submit(ferry::Op::write, ferry::Blocks::create(layers, from, to).value()).value();
        });
        transfer.wait().value();
        return taken;
    });
    for (std::size_t i = 0; i < pairs; i++)
        must(remote.as<std::uint64_t>()[2 * i * bytes / 8] == i * bytes / 8 + 1, "a block is not in its place");
}

} // namespace

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 101;
    const std::size_t calls = argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 5000;
    const ferry::Engine a = ferry::Engine::open().value(), b = ferry::Engine::open().value();
    writes(a, b, rounds, calls);
    blocks(a, b, rounds);
    return 0;
}
