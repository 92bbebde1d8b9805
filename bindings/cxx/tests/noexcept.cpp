// ferry.hpp and ferry_kv.hpp in a program without exceptions: the program tests each result, and value() of a failure
// ends the process.
#include "kv_ranks.hpp"

#include <csignal>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(bool holds, const char *what)
{
    if (!holds) give_up(what);
}

static void bytes_move()
{
    Pair pair;
    fill(pair.a_memory, 1);
    must(pair.peer.write(pair.range(0, 0, 4096)));
    check(misplaced(pair.b_memory, 0, 4096, 1, 0) == 0, "the bytes are not in place");
    ferry::Result<ferry::Peer> nobody = pair.a.connect("nonsense");
    check(!nobody && nobody.status() == FERRY_ERR_INVALID && nobody.message()[0] != 0, "no reason was given");
}

static void a_sequence_is_handed_over()
{
    const Rank producer({1, 8}), consumer({1, 12});
    const kv::Id id = must(kv::new_id());
    consumer.take(id, consumer.connect(producer));
    producer.offer(id);
    producer.finish(id);
    check(consumer.end()->kind == FERRY_KV_EVENT_RECEIVED && consumer.holds(0, kv_tokens), "the sequence is not there");
    check(producer.cache.seal(id, 1).status() < 0, "an offer that has ended was sealed");
}

static void value_of_a_failure_ends_the_process()
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        const rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        std::signal(SIGABRT, SIG_DFL);
        ferry::Result<int> failed;
        failed.fail(FERRY_ERR_STALE, "gone");
        _exit(failed.value());
    }
    check(child > 0 && waitpid(child, &status, 0) == child, "no child");
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "value() returned");
}

int main()
{
    bytes_move();
    a_sequence_is_handed_over();
    value_of_a_failure_ends_the_process();
    std::puts("noexcept: 3 passed");
}
