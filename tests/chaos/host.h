/*
 * Shared by the nodes of chaos in C, C++, Go and Python: the arena, and what a process uses. `make chaos` runs nodes in
 * all languages against one another; engine/tests/chaos has the program that starts and judges them.
 *
 * A node gets the descriptor of its arena in CHAOS_ARENA. Its first line of input has the settings of its engine,
 * "key=value key=value ...". The node then registers the arena, says
 *
 *   opened REGION ADDRESS              or "unopened WHY", and ends
 *
 * and obeys one command a line, in order, until its input ends; what waits has a thread of its own:
 *
 *   connect NODE EPOCH ADDRESS         says "connected NODE EPOCH PEER" or "unconnected NODE EPOCH WHY" within 2 s
 *   op ID r|w PEER REGION DEADLINE FLAGS LOCAL:REMOTE:LENGTH...
 *                                      submits; places count from HOST_ARENA, times are milliseconds, the flags are
 *                                      o ORDERED, c CHECKSUM, s NO_COALESCE, n a notification "ID REMOTE:LENGTH ... ".
 *                                      Says "final ID STATE STATUS FENCE NOTIFICATION TRANSPORT", "again ID" if a
 *                                      transfer ends a second time, or "refused ID STATUS WHY"
 *   notify ID PEER DEADLINE            sends the notification "ID "; says "noted ID STATUS"
 *   cancel ID
 *   fence PEER                         says "fenced PEER STATUS" within 5 s
 *   limit descriptors|memory MORE      and "unlimit descriptors|memory"
 *   close                              says "unregistered MILLISECONDS STATUS", "closed MILLISECONDS STATUS" and "usage
 *                                      DESCRIPTORS DESCRIPTORS THREADS THREADS", before the engine and after it; ends
 *
 * Of events it says "note ID whole", or "note ID broken at PLACE"; "late PLACE LENGTH"; "lost PEER STATUS WHY".
 */
#ifndef FERRY_TESTS_CHAOS_HOST_H
#define FERRY_TESTS_CHAOS_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where every process maps its arena, and its bytes. */
#define HOST_ARENA UINT64_C(0x600000000000)
#define HOST_ARENA_BYTES ((size_t)8 << 20)

/* Maps the arena of CHAOS_ARENA. Ends the process if that fails. */
void *host_map(void);

/* Checks the data that a notification names, and then writes over it, as an application may. Returns the first place
 * that is wrong, or -1. */
int64_t host_note(const void *text, size_t length, uint64_t *id);

/* Limits "descriptors" or "memory" to what is in use and `more`; lifts the limit if `more` is negative. */
void host_limit(const char *what, int64_t more);

/* Descriptors of the process, and threads of ferry. */
struct host_usage {
    int32_t descriptors, threads;
};

/* Returns the usage of a process without an engine, and once it is as that was; or after two seconds. The kernel takes
 * a moment to forget a thread. */
struct host_usage host_usage_before(void);
struct host_usage host_usage_after(struct host_usage before);

#ifdef __cplusplus
}
#endif
#endif
