// Threads of the plugin. They block the program's signals, so that a signal to the process is never delivered to one of
// them.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace ferry_nixl {

// Blocks all signals of this thread, except those of faults, until the end of the scope. A thread that is started in
// the scope has them blocked for its life.
class Quiet {
public:
    Quiet()
    {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
        pthread_sigmask(SIG_BLOCK, &all, &before);
    }
    ~Quiet() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    Quiet(const Quiet &) = delete;
    Quiet &operator=(const Quiet &) = delete;

private:
    sigset_t before;
};

template <typename Body> std::thread quiet_thread(Body body)
{
    const Quiet quiet;
    return std::thread(std::move(body));
}

} // namespace ferry_nixl
