/* What a program does with a device library, in the same words for each of them. The tests of the bindings play that
 * program, with libprogram.so from cuda-12.8/ or cann-9.1/. All calls from one thread, whose current context
 * they change. What fails is written to stderr and aborts: it is the test's mistake. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream of device 0 with an event and locked memory to copy from and to, zeroed. */
typedef struct program_stream {
    void *handle, *event, *staged;
    size_t length; /* of staged */
    void *gate;
} program_stream;

#pragma GCC visibility push(default)
void program_begin(void);
/* Gives back what `program_begin` and contexts took, and counts what the library complains of, such as what
 * somebody else has not given back. */
long program_end(void);

/* Memory of device 0 or 1, zeroed. */
uint64_t program_alloc(int device, size_t length);
void program_free(uint64_t address);
void program_put(uint64_t address, const void *from, size_t length);
void program_get(void *into, uint64_t address, size_t length);

program_stream *program_stream_make(size_t length);
/* Blocked or not; all that it was given is done before. */
void program_stream_end(program_stream *stream);
/* What the stream is given from here on waits for `program_stream_go`; once for each stream. */
void program_stream_block(program_stream *stream);
void program_stream_go(program_stream *stream);
/* Has the stream copy all of `staged` to a device, or from one. */
void program_stream_write(program_stream *stream, uint64_t to);
void program_stream_read(program_stream *stream, uint64_t from);
/* Records the event behind all that the stream has been given. */
void program_stream_record(program_stream *stream);
int program_stream_is_done(program_stream *stream);
#pragma GCC visibility pop

#ifdef __cplusplus
}

#include <cstdio>
#include <cstdlib>

/* For what is written in the library's words. */
#define OK(call) program_check(call, #call)
inline void program_check(int code, const char *call) {
    if (code == 0) return;
    fprintf(stderr, "%s: %d\n", call, code);
    abort();
}
#endif
#endif
