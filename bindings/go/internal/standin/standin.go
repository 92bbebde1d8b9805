// Package standin is a program's use of a CUDA driver, for the tests: the stand-in of tests/standin, which
// FERRY_TEST_STANDIN says where to find.
package standin

/*
#cgo CFLAGS: -I${SRCDIR}/../../../../tests/standin/cuda
#cgo LDFLAGS: -ldl
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static CUcontext contexts[2];

static int find(const char *path)
{
    library = dlopen(path, RTLD_NOW);
    return library != NULL;
}

// Calls a function of the driver, by name; a missing one is CUDA_ERROR_NOT_FOUND.
#define CALL(function, ...) \
    (dlsym(library, #function) ? ((__typeof__(&function))dlsym(library, #function))(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND)
#define TRY(call) do { CUresult result_ = (call); if (result_ != CUDA_SUCCESS) return result_; } while (0)

// Goroutines change threads, so each call enters the device's context by itself.
static CUresult enter(int device)
{
    if (contexts[device] == NULL) {
        TRY(CALL(cuInit, 0));
        TRY(CALL(cuDevicePrimaryCtxRetain, &contexts[device], device));
    }
    return CALL(cuCtxSetCurrent, contexts[device]);
}

static CUresult leave(CUresult result)
{
    CUresult left = CALL(cuCtxSetCurrent, NULL);
    return result == CUDA_SUCCESS ? left : result;
}

static CUresult allocate(int device, size_t length, CUdeviceptr *address)
{
    TRY(enter(device));
    TRY(CALL(cuMemAlloc_v2, address, length));
    return leave(CALL(cuMemsetD8_v2, *address, 0, length));
}

static CUresult release(CUdeviceptr address)
{
    TRY(enter(0));
    return leave(CALL(cuMemFree_v2, address));
}

static CUresult put(CUdeviceptr address, const void *from, size_t length)
{
    TRY(enter(0));
    return leave(CALL(cuMemcpyHtoD_v2, address, from, length));
}

static CUresult get(void *into, CUdeviceptr address, size_t length)
{
    TRY(enter(0));
    return leave(CALL(cuMemcpyDtoH_v2, into, address, length));
}

typedef struct stream {
    CUstream handle;
    CUevent event;
    void *gate, *staged;
} stream;

static CUresult stream_make(stream *made, size_t length)
{
    TRY(enter(0));
    TRY(CALL(cuStreamCreate, &made->handle, CU_STREAM_NON_BLOCKING));
    TRY(CALL(cuEventCreate, &made->event, CU_EVENT_DISABLE_TIMING));
    TRY(CALL(cuMemHostAlloc, &made->gate, 4096, 0));
    TRY(CALL(cuMemHostAlloc, &made->staged, length, 0));
    memset(made->gate, 0, 4096);
    memset(made->staged, 0, length);
    return leave(CUDA_SUCCESS);
}

static CUresult stream_end(stream *made)
{
    TRY(enter(0));
    TRY(CALL(cuStreamDestroy_v2, made->handle));
    TRY(CALL(cuEventDestroy_v2, made->event));
    TRY(CALL(cuMemFreeHost, made->gate));
    return leave(CALL(cuMemFreeHost, made->staged));
}

static CUresult stream_block(stream *made)
{
    TRY(enter(0));
    return leave(CALL(cuStreamWaitValue32_v2, made->handle, (CUdeviceptr)(uintptr_t)made->gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static void stream_go(stream *made) { *(volatile uint32_t *)made->gate = 1; }

static CUresult stream_write(stream *made, CUdeviceptr to, size_t length)
{
    TRY(enter(0));
    TRY(CALL(cuMemcpyHtoDAsync_v2, to, made->staged, length, made->handle));
    return leave(CALL(cuEventRecord, made->event, made->handle));
}

static CUresult stream_read(stream *made, CUdeviceptr from, size_t length)
{
    TRY(enter(0));
    return leave(CALL(cuMemcpyDtoHAsync_v2, made->staged, from, length, made->handle));
}

static CUresult stream_query(stream *made)
{
    CUresult asked;
    TRY(enter(0));
    asked = CALL(cuStreamQuery, made->handle);
    return leave(asked);
}

static long end(void)
{
    long (*audit)(void);
    if (library == NULL) return 0;
    audit = (long (*)(void))dlsym(library, "standin_audit");
    for (int device = 0; device < 2; device++) {
        if (contexts[device] != NULL && CALL(cuDevicePrimaryCtxRelease_v2, device) != CUDA_SUCCESS) return -1;
    }
    return audit == NULL ? -1 : audit();
}
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"unsafe"
)

// Library is the path of the stand-in for CUDA 12.8; it is opened, and the devices are there. It panics without one.
var Library = sync.OnceValue(func() string {
	folder := os.Getenv("FERRY_TEST_STANDIN")
	if folder == "" {
		panic("FERRY_TEST_STANDIN names no folder: tests/standin/build.sh FOLDER makes one, as test.sh does")
	}
	path := filepath.Join(folder, "cuda-12.8", "libcuda.so.1")
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if C.find(name) == 0 {
		panic(path + " can't be opened")
	}
	return path
})

// Complaints gives back what is left of this package's own, once at the end, and counts what else has not been given
// back to the driver. 0 without the library.
func Complaints() int {
	return int(C.end())
}

func must(call string, result C.CUresult) {
	if result != C.CUDA_SUCCESS {
		panic(fmt.Sprintf("%s: %d", call, result))
	}
}

// Memory of a device, zeroed.
type Memory struct {
	Address uintptr
	Length  int
}

// Alloc allocates memory of a device.
func Alloc(device, length int) Memory {
	Library()
	var address C.CUdeviceptr
	must("allocate", C.allocate(C.int(device), C.size_t(length), &address))
	return Memory{uintptr(address), length}
}

// Free gives it back.
func (m Memory) Free() { must("free", C.release(C.CUdeviceptr(m.Address))) }

// Put copies bytes to the device.
func (m Memory) Put(bytes []byte) {
	must("put", C.put(C.CUdeviceptr(m.Address), unsafe.Pointer(&bytes[0]), C.size_t(len(bytes))))
}

// Get copies all bytes from the device.
func (m Memory) Get() []byte {
	bytes := make([]byte, m.Length)
	must("get", C.get(unsafe.Pointer(&bytes[0]), C.CUdeviceptr(m.Address), C.size_t(len(bytes))))
	return bytes
}

// A Stream has memory of the host to copy from and to, and a gate to wait at.
type Stream struct {
	made   C.stream
	length int
}

// NewStream makes a stream.
func NewStream(length int) *Stream {
	Library()
	s := &Stream{length: length}
	var made C.stream
	must("stream", C.stream_make(&made, C.size_t(length)))
	s.made = made
	return s
}

// Close ends it.
func (s *Stream) Close() { made := s.made; must("close", C.stream_end(&made)) }

// Handle is the CUstream.
func (s *Stream) Handle() uintptr { return uintptr(unsafe.Pointer(s.made.handle)) }

// Event is the CUevent behind the last Write.
func (s *Stream) Event() uintptr { return uintptr(unsafe.Pointer(s.made.event)) }

// Staged is what Write sends, and what Read has brought when the stream IsDone.
func (s *Stream) Staged() []byte { return unsafe.Slice((*byte)(s.made.staged), s.length) }

// Block has what the stream is given from here on wait for Go.
func (s *Stream) Block() { made := s.made; must("block", C.stream_block(&made)) }

// Go opens the gate.
func (s *Stream) Go() { made := s.made; C.stream_go(&made) }

// Write has the stream copy Staged to a device.
func (s *Stream) Write(to Memory) {
	made := s.made
	must("write", C.stream_write(&made, C.CUdeviceptr(to.Address), C.size_t(s.length)))
}

// Read has the stream copy to Staged from a device.
func (s *Stream) Read(from Memory) {
	made := s.made
	must("read", C.stream_read(&made, C.CUdeviceptr(from.Address), C.size_t(s.length)))
}

// IsDone says whether the stream has done all that it was given.
func (s *Stream) IsDone() bool {
	made := s.made
	result := C.stream_query(&made)
	if result == C.CUDA_ERROR_NOT_READY {
		return false
	}
	must("query", result)
	return true
}
