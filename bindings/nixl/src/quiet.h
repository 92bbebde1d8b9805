// Threads of the plugin's own. Signals are the program's: a signal that is sent to the process must not find a thread
// here that has not blocked it.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace ferry_nixl {

// Blocks all signals of this thread but those of faults, until the end of the scope. A thread that is started meanwhile
// has them blocked for its life.
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
