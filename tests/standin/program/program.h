/* A program's use of a device library, with the same functions for each library. The tests of the bindings play that
 * program, with libprogram.so from cuda-12.8/ or cann-9.1/. All calls come from one thread, whose current context
 * they change. A failure is written to stderr and aborts, because it is the test's mistake. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream of device 0 with an event, and zeroed pinned memory to copy from and to. */
typedef struct program_stream {
    void *handle, *event, *staged;
    size_t length; /* of staged */
    void *gate;
} program_stream;

#pragma GCC visibility push(default)
void program_begin(void);
/* Frees the objects of `program_begin` and the contexts. Returns the number of the library's complaints, such as
 * objects that other code has not freed. */
long program_end(void);

/* Allocates zeroed memory of device 0 or 1. */
uint64_t program_alloc(int device, size_t length);
void program_free(uint64_t address);
void program_put(uint64_t address, const void *from, size_t length);
void program_get(void *into, uint64_t address, size_t length);

program_stream *program_stream_make(size_t length);
/* Ends the stream after all its work, blocked or not. */
void program_stream_end(program_stream *stream);
/* Makes the work that the stream is given from here on wait for `program_stream_go`; once for each stream. */
void program_stream_block(program_stream *stream);
void program_stream_go(program_stream *stream);
/* Makes the stream copy all of `staged` to a device, or from a device. */
void program_stream_write(program_stream *stream, uint64_t to);
void program_stream_read(program_stream *stream, uint64_t from);
/* Records the event behind all work that the stream has been given. */
void program_stream_record(program_stream *stream);
int program_stream_is_done(program_stream *stream);
#pragma GCC visibility pop

#ifdef __cplusplus
}

#include <cstdio>
#include <cstdlib>

/* For calls of the device library. */
#define OK(call) program_check(call, #call)
inline void program_check(int code, const char *call) {
    if (code == 0) return;
    fprintf(stderr, "%s: %d\n", call, code);
    abort();
}
#endif
#endif
