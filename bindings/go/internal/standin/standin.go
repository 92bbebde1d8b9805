// Package standin plays a program that uses device libraries, for the tests. FERRY_TEST_STANDIN names the folder of the
// stand-ins (tests/standin).
package standin

/*
#cgo CFLAGS: -I${SRCDIR}/../../../../tests/standin/program
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <program.h>
#include <stdlib.h>

static void *find(const char *path) { return dlopen(path, RTLD_NOW); }

// Calls a function of a libprogram.so by name.
#define CALL(library, function, ...) ((__typeof__(&function))dlsym(library, #function))(__VA_ARGS__)

static void begin(void *library) { CALL(library, program_begin); }
static long end(void *library) { return CALL(library, program_end); }
static uint64_t allocate(void *library, int device, size_t length) { return CALL(library, program_alloc, device, length); }
static void release(void *library, uint64_t address) { CALL(library, program_free, address); }
static void put(void *library, uint64_t to, const void *from, size_t length) { CALL(library, program_put, to, from, length); }
static void get(void *library, void *to, uint64_t from, size_t length) { CALL(library, program_get, to, from, length); }
static program_stream *stream_make(void *library, size_t length) { return CALL(library, program_stream_make, length); }
static void stream_end(void *library, program_stream *s) { CALL(library, program_stream_end, s); }
static void stream_block(void *library, program_stream *s) { CALL(library, program_stream_block, s); }
static void stream_go(void *library, program_stream *s) { CALL(library, program_stream_go, s); }
static void stream_write(void *library, program_stream *s, uint64_t to) { CALL(library, program_stream_write, s, to); }
static void stream_read(void *library, program_stream *s, uint64_t from) { CALL(library, program_stream_read, s, from); }
static void stream_record(void *library, program_stream *s) { CALL(library, program_stream_record, s); }
static int stream_is_done(void *library, program_stream *s) { return CALL(library, program_stream_is_done, s); }
*/
import "C"

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"
)

// A Library is a device library.
type Library struct {
	// Name is the prefix of its settings.
	Name    string
	folder  string
	file    string
	once    sync.Once
	program unsafe.Pointer // its libprogram.so
}

// The libraries.
var (
	CUDA   = &Library{Name: "cuda", folder: "cuda-12.8", file: "libcuda.so.1"}
	Ascend = &Library{Name: "ascend", folder: "cann-9.1", file: "libascendcl.so"}
)

var work = sync.OnceValue(func() chan<- func() {
	list := make(chan func())
	go func() {
		runtime.LockOSThread()
		for next := range list {
			next()
		}
	}()
	return list
})

// Do makes a call on the program's thread, the only thread with a device's context, and waits for it.
func Do(call func()) {
	done := make(chan struct{})
	work() <- func() {
		defer close(done)
		call()
	}
	<-done
}

func (l *Library) path(file string) string {
	folder := os.Getenv("FERRY_TEST_STANDIN")
	if folder == "" {
		panic("FERRY_TEST_STANDIN names no folder: tests/standin/build.sh FOLDER makes one, as test.sh does")
	}
	return filepath.Join(folder, l.folder, file)
}

// open starts the program's use of the library.
func (l *Library) open() unsafe.Pointer {
	l.once.Do(func() {
		path := C.CString(l.path("libprogram.so"))
		defer C.free(unsafe.Pointer(path))
		if l.program = C.find(path); l.program == nil {
			panic(C.GoString(path) + " can't be opened")
		}
		Do(func() { C.begin(l.program) })
	})
	return l.program
}

// Path returns the path of the library, which is opened and has its devices. It panics if the library is missing.
func (l *Library) Path() string {
	l.open()
	return l.path(l.file)
}

// Complaints ends every library's use, once at the end of the tests, which frees the remaining objects of this package.
// It returns how often the libraries complained about other objects.
func Complaints() (count int) {
	for _, library := range []*Library{CUDA, Ascend} {
		if library.program != nil {
			Do(func() { count += int(C.end(library.program)) })
		}
	}
	return count
}

// Memory of a device, zeroed.
type Memory struct {
	Address uintptr
	Length  int
	program unsafe.Pointer
}

// Alloc allocates memory of a device.
func (l *Library) Alloc(device, length int) Memory {
	m := Memory{Length: length, program: l.open()}
	Do(func() { m.Address = uintptr(C.allocate(m.program, C.int(device), C.size_t(length))) })
	return m
}

// Free frees memory of a device.
func (m Memory) Free() { Do(func() { C.release(m.program, C.uint64_t(m.Address)) }) }

// Put copies bytes to the device.
func (m Memory) Put(bytes []byte) {
	Do(func() { C.put(m.program, C.uint64_t(m.Address), unsafe.Pointer(&bytes[0]), C.size_t(len(bytes))) })
}

// Get copies all bytes from the device.
func (m Memory) Get() []byte {
	bytes := make([]byte, m.Length)
	Do(func() { C.get(m.program, unsafe.Pointer(&bytes[0]), C.uint64_t(m.Address), C.size_t(len(bytes))) })
	return bytes
}

// A Stream of device 0 has host memory to copy from and to, and a gate to wait at.
type Stream struct {
	made    *C.program_stream
	program unsafe.Pointer
}

// NewStream makes a stream.
func (l *Library) NewStream(length int) *Stream {
	s := &Stream{program: l.open()}
	Do(func() { s.made = C.stream_make(s.program, C.size_t(length)) })
	return s
}

// Close ends the stream, blocked or not.
func (s *Stream) Close() { Do(func() { C.stream_end(s.program, s.made) }) }

// Handle returns the library's handle of the stream.
func (s *Stream) Handle() uintptr { return uintptr(s.made.handle) }

// Event returns the event, which is recorded after the last Write.
func (s *Stream) Event() uintptr { return uintptr(s.made.event) }

// Staged returns the memory that Write sends, and that Read has filled when the stream IsDone.
func (s *Stream) Staged() []byte { return unsafe.Slice((*byte)(s.made.staged), s.made.length) }

// Block makes the work that the stream is given from now on wait for one Go.
func (s *Stream) Block() { Do(func() { C.stream_block(s.program, s.made) }) }

// Go opens the gate.
func (s *Stream) Go() { C.stream_go(s.program, s.made) }

// Write makes the stream copy Staged to a device.
func (s *Stream) Write(to Memory) {
	Do(func() {
		C.stream_write(s.program, s.made, C.uint64_t(to.Address))
		C.stream_record(s.program, s.made)
	})
}

// Read makes the stream copy from a device to Staged.
func (s *Stream) Read(from Memory) {
	Do(func() { C.stream_read(s.program, s.made, C.uint64_t(from.Address)) })
}

// IsDone returns true if the stream has done all its work.
func (s *Stream) IsDone() (done bool) {
	Do(func() { done = C.stream_is_done(s.program, s.made) != 0 })
	return done
}
