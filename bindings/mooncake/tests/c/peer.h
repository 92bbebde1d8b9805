/* The other process: an engine with registered memory that does what it is told, line by line. */
#ifndef PEER_H
#define PEER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define MEMORY_BYTES ((size_t)16 << 20)

typedef struct {
    pid_t pid;
    FILE *in, *out; /* what it is told, and what it answers */
    char session[128];
    uint64_t address;         /* of MEMORY_BYTES that others may read and write */
    uint64_t private_address; /* of 4,096 that they may not */
} peer;

/* This program, as it was called. */
extern const char *program;

/* Starts it anew as a peer that listens on `host`. */
void peer_start(peer *it, const char *host);
void peer_stop(peer *it);
/* Returns when it is stopped; SIGCONT makes it go on. */
void peer_pause(const peer *it);
/* Tells it something and waits for the number that it answers. */
long peer_ask(peer *it, const char *what, unsigned long seed, size_t offset, size_t length);

/* Data that says where it belongs: each 8 bytes are made from the seed and their offset. */
void pattern_fill(unsigned char *memory, unsigned long seed, size_t offset, size_t length);
int pattern_holds(const unsigned char *memory, unsigned long seed, size_t offset, size_t length);

/* What the other process runs. */
int peer_main(const char *host);

#endif
