/* A child that inherited an engine by fork cannot use it and does not harm it. */
#define _POSIX_C_SOURCE 200809L
#include "every_call.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* Kept reachable, so that valgrind does not report the memory that the child leaves alone as lost. */
static pair forked;

/* A second thread of the parent keeps the engine busy while it forks. */
typedef struct {
    const pair *pair;
    int stop; /* Atomic: the main thread sets it. */
    int rounds;
    ferry_status status;
} load;

static void *write_until_told(void *context)
{
    load *load = context;
    ferry_request request = range(load->pair, 0, 0, 65536);
    do {
        load->status = ferry_write(load->pair->a, load->pair->peer, &request, 1, NULL, NULL, NULL);
        load->rounds++;
    } while (!__atomic_load_n(&load->stop, __ATOMIC_RELAXED) && load->status == FERRY_OK);
    return NULL;
}

/* Runs in the child and returns its exit status, 0 for success. Makes only async-signal-safe calls and ferry's. */
static int in_the_child(ferry_queue queue, ferry_transfer transfer)
{
    static const char text[] = "\n    in the child: ";
    const char *call = first_not_closed(&forked, queue, transfer);
    if (call != NULL) {
        if (write(STDOUT_FILENO, text, sizeof text - 1) < 0 ||
            write(STDOUT_FILENO, call, strlen(call)) < 0)
            return 4;
        return 1;
    }
    if (ferry_engine_close(forked.a, FERRY_FOREVER, NULL) != FERRY_OK) return 2;
    ferry_engine_free(forked.a);
    ferry_engine_free(forked.b);
    /* The engine is the parent's: "free" left it alone, and it is still closed here. */
    if (first_not_closed(&forked, queue, transfer) != NULL) return 3;
    return 0;
}

static int exit_status_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static void a_child_is_refused_and_the_parent_goes_on(void)
{
    ferry_queue queue = 0;
    ferry_transfer transfer = 0;
    ferry_request request;
    pthread_t thread;
    load load;
    forked = open_pair(65536);
    request = range(&forked, 0, 0, 8);
    CHECK_OK(ferry_queue_create(forked.a, FERRY_QUEUE_TRANSFERS, 4, &queue, NULL));
    CHECK_OK(ferry_transfer_submit(forked.a, forked.peer, FERRY_OP_WRITE, &request, 1, NULL, &transfer, NULL));
    CHECK_OK(ferry_transfer_wait(forked.a, transfer, PATIENCE_NS, NULL, NULL));
    memset(&load, 0, sizeof load);
    load.pair = &forked;
    CHECK(pthread_create(&thread, NULL, write_until_told, &load) == 0);
    for (int i = 0; i < 4; i++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) leave_child(in_the_child(queue, transfer));
        status = exit_status_of(child);
        if (status != 0) FAIL("the child ended with %d", status);
    }
    __atomic_store_n(&load.stop, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(load.status == FERRY_OK && load.rounds > 0);
    fill(forked.a_memory, 65536, 5);
    request = range(&forked, 0, 0, 65536);
    CHECK_OK(ferry_write(forked.a, forked.peer, &request, 1, NULL, NULL, NULL));
    CHECK(holds(forked.b_memory, 0, 65536, 5, 0));
    end_pair(&forked);
}

static void a_child_may_open_its_own_engine(void)
{
#ifdef __SANITIZE_THREAD__
    puts("\nSKIPPED: fork/a_child_may_open_its_own_engine (ThreadSanitizer ends a forked child that starts threads)");
    return;
#endif
    forked = open_pair(4096);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ferry_engine *own = NULL;
        void *memory = NULL;
        ferry_region region = 0;
        if (ferry_engine_open(NULL, &own, NULL) != FERRY_OK) leave_child(1);
        if (ferry_memory_alloc(own, 4096, NULL, &memory, &region, NULL) != FERRY_OK) leave_child(2);
        if (ferry_engine_close(own, FERRY_FOREVER, NULL) != FERRY_OK) leave_child(3);
        ferry_engine_free(own);
        leave_child(0);
    }
    CHECK(exit_status_of(child) == 0);
    end_pair(&forked);
}

SUITE(fork, CASE(a_child_is_refused_and_the_parent_goes_on), CASE(a_child_may_open_its_own_engine));
