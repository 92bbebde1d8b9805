// What ferry.hpp costs over ferry.h: a synchronous 64 B WRITE between two engines of one process, by the
// same-host path. Rounds of C and of C++ alternate, each after the other's; the difference is taken round
// by round, and its median and quartiles are printed with both medians. The data is checked.
//
// usage: overhead [rounds [calls]]
#include <ferry.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr std::size_t bytes = 64;

struct Side {
    const ferry::Peer &peer;
    ferry::Request request;
    std::uint64_t *word;
    std::size_t calls;
};

template <class Write> double nanoseconds_per_call(const Side &side, Write &&write)
{
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < side.calls; i++) {
        ++*side.word;
        if (!write()) {
            std::fputs("a WRITE failed\n", stderr);
            std::exit(1);
        }
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
           static_cast<double>(side.calls);
}

// As a C program does it: one ferry_error for all calls.
double in_c(const Side &side)
{
    static ferry_error error = {sizeof(ferry_error), 0, 0, 0, 0, 0, 0, {0}};
    ferry_engine *engine = side.peer.engine();
    const ferry_peer peer = side.peer.handle();
    return nanoseconds_per_call(side, [&] {
        return ferry_write(engine, peer, &side.request, 1, nullptr, nullptr, &error) == FERRY_OK;
    });
}

double in_cxx(const Side &side)
{
    return nanoseconds_per_call(side, [&] { return side.peer.write(side.request).ok(); });
}

// With value(), as a program with exceptions does it.
double in_throwing_cxx(const Side &side)
{
    return nanoseconds_per_call(side, [&] {
        side.peer.write(side.request).value();
        return true;
    });
}

double quantile(std::vector<double> values, double part)
{
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

} // namespace

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 101;
    const std::size_t calls = argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 5000;
    const ferry::Engine a = ferry::Engine::open().value(), b = ferry::Engine::open().value();
    const ferry::Memory local = a.alloc(4096).value(), remote = b.alloc(4096, ferry::AllocOptions().name("b")).value();
    const ferry::Peer peer = a.connect(b.address().value()).value();
    const Side side = {peer, ferry::request(local.data(), bytes, peer.region("b").value()),
                       local.as<std::uint64_t>().data(), calls};
    std::vector<double> c, cxx, throwing, extra, extra_throwing;
    in_c(side);
    in_cxx(side);
    for (int round = 0; round < rounds; round++) {
        const bool c_first = round % 2 == 0;
        const double before = c_first ? in_c(side) : 0;
        cxx.push_back(in_cxx(side));
        throwing.push_back(in_throwing_cxx(side));
        c.push_back(c_first ? before : in_c(side));
        extra.push_back(cxx.back() - c.back());
        extra_throwing.push_back(throwing.back() - c.back());
    }
    if (remote.as<std::uint64_t>()[0] != *side.word) {
        std::fputs("the last WRITE is not there\n", stderr);
        return 1;
    }
    for (const ferry::PathInfo &path : peer.paths().value())
        if (path.chosen) std::printf("path %u: %s\n", path.transport, path.why);
    std::printf("64 B synchronous WRITE, %d rounds of %zu calls, ns per call\n", rounds, calls);
    std::printf("C                       %8.1f\n", quantile(c, 0.5));
    std::printf("C++                     %8.1f  difference %+6.1f (quartiles %+.1f to %+.1f)\n", quantile(cxx, 0.5),
                quantile(extra, 0.5), quantile(extra, 0.25), quantile(extra, 0.75));
    std::printf("C++ with exceptions     %8.1f  difference %+6.1f (quartiles %+.1f to %+.1f)\n", quantile(throwing, 0.5),
                quantile(extra_throwing, 0.5), quantile(extra_throwing, 0.25), quantile(extra_throwing, 0.75));
    return 0;
}
