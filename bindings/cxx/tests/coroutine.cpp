// co_await ferry::Move in C++20: coroutines that a poll loop resumes, on the loop's thread.
#include "engines.hpp"

#ifndef FERRY_HAS_COROUTINES
#error "run.sh builds this only where the compiler has coroutines"
#endif

static void check(bool holds, const char *what)
{
    if (!holds) give_up(what);
}

// Starts at once, and destroys itself at its end.
struct Detached {
    struct promise_type {
        Detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::abort(); }
    };
};

static int finished = 0;

// Writes one part of the pair's memory, then reads it back to another place.
static Detached there_and_back(const Pair &pair, const ferry::Queue &queue, std::size_t part)
{
    ferry::TransferResult result;
    const ferry::Request write = pair.range(part * 64, part * 64, 64);
    const ferry::Request read = pair.range(2048 + part * 64, part * 64, 64);
    must(co_await ferry::Move(pair.peer, ferry::Op::write, write, queue));
    must(co_await ferry::Move(pair.peer, ferry::Op::read, read, queue, {}, &result));
    check(result.bytes_confirmed == 64, "the result is not the transfer's");
    finished++;
}

static Detached refused(const Pair &pair, const ferry::Queue &queue)
{
    ferry::Request wrong = pair.range(0, 0, 8);
    wrong.local += 1 << 30;
    ferry::Result<void> result = co_await ferry::Move(pair.peer, ferry::Op::write, wrong, queue);
    check(result.status() == FERRY_ERR_NOT_REGISTERED, "it was not refused");
    finished++;
}

int main()
{
    Pair pair;
    ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 64));
    ferry::Event storage[8];
    constexpr int parts = 32;
    fill(pair.a_memory, 1);
    for (std::size_t part = 0; part < parts; part++) there_and_back(pair, queue, part);
    refused(pair, queue);
    while (finished < parts + 1) {
        if (must(queue.dispatch(storage, [](ferry::Event &) {})) < std::size(storage) && finished < parts + 1)
            wait_readable(queue);
    }
    check(misplaced(pair.a_memory, 2048, 2048, 1, 0) == 0, "the bytes are not in place");
    check(must(pair.a.stats()).transfers == 0, "transfers were not given back");
    std::puts("coroutine: 2 passed");
}
