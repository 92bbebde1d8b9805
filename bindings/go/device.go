package ferry

// #include <ferry.h>
import "C"

import "unsafe"

// MemoryKind is a kind of memory.
type MemoryKind uint32

// The kinds of memory. With MemoryAuto ferry detects the kind: memory of a device whose library this process
// has loaded, or host memory.
const (
	MemoryAuto        MemoryKind = C.FERRY_MEMORY_AUTO
	MemoryHost        MemoryKind = C.FERRY_MEMORY_HOST
	MemoryCUDA        MemoryKind = C.FERRY_MEMORY_CUDA
	MemoryAscend      MemoryKind = C.FERRY_MEMORY_ASCEND
	MemoryCUDAManaged MemoryKind = C.FERRY_MEMORY_CUDA_MANAGED
	MemoryCUDAPinned  MemoryKind = C.FERRY_MEMORY_CUDA_PINNED
	MemoryFile        MemoryKind = C.FERRY_MEMORY_FILE
)

// RegisterDevice registers memory that the CPU may not touch, by its address: a CUdeviceptr, or the result of
// cudaMalloc or aclrtMalloc. The memory must stay allocated as Register demands. Bytes of the result is nil.
func (e *Engine) RegisterDevice(address uintptr, length int, options *RegionOptions) (*Memory, error) {
	registered, err := e.RegisterDeviceBatch([]DeviceRange{{address, length}}, options)
	if err != nil {
		return nil, err
	}
	return registered[0], nil
}

// A DeviceRange is a range of device memory to register.
type DeviceRange struct {
	Address uintptr
	Length  int
}

// RegisterDeviceBatch registers several ranges of device memory with the same options, all or none, as
// RegisterBatch does. Without a Kind in the options, the ranges may be on several devices.
func (e *Engine) RegisterDeviceBatch(ranges []DeviceRange, options *RegionOptions) ([]*Memory, error) {
	addresses, lengths := make([]uintptr, len(ranges)), make([]int, len(ranges))
	for i, r := range ranges {
		addresses[i], lengths[i] = r.Address, r.Length
	}
	regions, err := e.register(lengths, options, func(lengths *C.size_t, full *C.ferry_region_options, out *C.ferry_region,
		c *C.ferry_error) C.ferry_status {
		// The address is passed as a plain number: no Go memory is there.
		first := (*unsafe.Pointer)(unsafe.Pointer(&addresses[0]))
		return C.ferry_region_register_batch(e.handle, first, lengths, C.size_t(len(ranges)), full, out, c)
	})
	var registered []*Memory
	for i, region := range regions {
		registered = append(registered, &Memory{engine: e, device: addresses[i], length: lengths[i], region: region})
	}
	return registered, err
}

// location returns the kind and device in the options.
func (o *RegionOptions) location() (C.uint32_t, C.int32_t) {
	if o == nil {
		return C.FERRY_MEMORY_AUTO, 0
	}
	return C.uint32_t(o.Kind), C.int32_t(o.Device)
}

// A StartAfter is a point in a device's work after which a transfer starts. Until then the transfer keeps its
// place among Ordered transfers, and the submit does not wait. An event must exist until the transfer is final. A
// stream must exist until the submit returns, and its context until the transfer is final. The zero value starts the
// transfer at once.
type StartAfter struct {
	kind   uint32
	handle uintptr
}

// AfterCUDAEvent is the point at which a recorded CUevent or cudaEvent_t is reached.
func AfterCUDAEvent(event uintptr) StartAfter {
	return StartAfter{C.FERRY_START_AFTER_CUDA_EVENT, event}
}

// AfterCUDAStream is the point after all work that a CUstream or cudaStream_t has been given by the time of
// the submit; 0 is the default stream.
func AfterCUDAStream(stream uintptr) StartAfter {
	return StartAfter{C.FERRY_START_AFTER_CUDA_STREAM, stream}
}

// AfterACLEvent is the point at which a recorded aclrtEvent is reached.
func AfterACLEvent(event uintptr) StartAfter { return StartAfter{C.FERRY_START_AFTER_ACL_EVENT, event} }

// AfterACLStream is the point after all work that an aclrtStream has been given by the time of the submit.
// The stream's context must be current on the submitting thread (see runtime.LockOSThread), or the submit
// fails with ErrUnsupported. Goroutines that change threads use AfterACLEvent.
func AfterACLStream(stream uintptr) StartAfter {
	return StartAfter{C.FERRY_START_AFTER_ACL_STREAM, stream}
}

// StreamWait makes a CUstream or cudaStream_t wait: work given to the stream after the call begins when the
// transfer is final, however it ended; Wait returns the outcome. 0 is the default stream. StreamWait itself
// does not wait. Streams of AscendCL cannot wait for a transfer.
func (t *Transfer) StreamWait(stream uintptr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() {
		return nil // there is nothing to wait for
	}
	return t.engine.call("stream wait", func(c *C.ferry_error) C.ferry_status {
		return C.ferry_transfer_stream_wait(t.engine.handle, t.handle, C.uint64_t(stream), C.FERRY_MEMORY_CUDA, c)
	})
}
