// ferry.hpp in a program without exceptions: the program tests each result, and value() of a failure ends the
// process.
#include "engines.hpp"

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
    value_of_a_failure_ends_the_process();
    std::puts("noexcept: 2 passed");
}
