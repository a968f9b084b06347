// Signals that wait until a computation has ended.
#pragma once
#include <pthread.h>
#include <signal.h>

// Blocks all signals of the calling thread, and of threads that it starts, but those that instructions of its own raise.
// -> which were blocked before.
inline sigset_t block_signals() {
    sigset_t all, before;
    sigfillset(&all);
    const int raised[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    for (int number : raised) sigdelset(&all, number);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    return before;
}
