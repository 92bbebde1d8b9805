/* The other process: an engine with registered memory. Commands and answers are lines. */
#ifndef PEER_H
#define PEER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define MEMORY_BYTES ((size_t)16 << 20)

typedef struct {
    pid_t pid;
    FILE *in, *out; /* commands to the peer, and its answers */
    char session[128];
    uint64_t address;         /* MEMORY_BYTES that others may read and write */
    uint64_t private_address; /* 4,096 bytes that others may not access */
} peer;

/* The path of this program, for starting it again. */
extern const char *program;

/* Starts this program as a peer that listens on `host`. */
void peer_start(peer *it, const char *host);
void peer_stop(peer *it);
/* Stops the peer's process with SIGSTOP and returns when it has stopped; SIGCONT resumes it. */
void peer_pause(const peer *it);
/* Sends a command and returns the number that the peer answers. */
long peer_ask(peer *it, const char *what, unsigned long seed, size_t offset, size_t length);

/* Data that encodes its position: each 8 bytes are made from the seed and their offset. */
void pattern_fill(unsigned char *memory, unsigned long seed, size_t offset, size_t length);
int pattern_holds(const unsigned char *memory, unsigned long seed, size_t offset, size_t length);

/* The main function of the other process. */
int peer_main(const char *host);

#endif
