package ferry

// #include <ferry.h>
import "C"

import "unsafe"

// MemoryKind is a kind of memory.
type MemoryKind uint32

// The kinds of memory. MemoryAuto has ferry find out what it is: of a device whose library this process has open, or
// the CPU's.
const (
	MemoryAuto        MemoryKind = C.FERRY_MEMORY_AUTO
	MemoryHost        MemoryKind = C.FERRY_MEMORY_HOST
	MemoryCUDA        MemoryKind = C.FERRY_MEMORY_CUDA
	MemoryAscend      MemoryKind = C.FERRY_MEMORY_ASCEND
	MemoryCUDAManaged MemoryKind = C.FERRY_MEMORY_CUDA_MANAGED
	MemoryCUDAPinned  MemoryKind = C.FERRY_MEMORY_CUDA_PINNED
)

func (k MemoryKind) String() string {
	names := [...]string{"auto", "host", "cuda", "ascend", "cuda_managed", "cuda_pinned"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// RegisterDevice is Register for memory that the CPU may not touch, by its address: a CUdeviceptr, what cudaMalloc or
// aclrtMalloc returned. The memory must stay there as long. Bytes of what it returns is nil.
func (e *Engine) RegisterDevice(address uintptr, length int, options *RegionOptions) (*Memory, error) {
	registered, err := e.RegisterDeviceBatch([]DeviceRange{{address, length}}, options)
	if err != nil {
		return nil, err
	}
	return registered[0], nil
}

// A DeviceRange is memory of a device that is to be registered.
type DeviceRange struct {
	Address uintptr
	Length  int
}

// RegisterDeviceBatch is RegisterBatch for memory of devices, and RegisterDevice for several ranges alike. With no Kind
// stated in the options, they may be of several devices.
func (e *Engine) RegisterDeviceBatch(ranges []DeviceRange, options *RegionOptions) ([]*Memory, error) {
	addresses, lengths := make([]uintptr, len(ranges)), make([]int, len(ranges))
	for i, r := range ranges {
		addresses[i], lengths[i] = r.Address, r.Length
	}
	regions, err := e.register(lengths, options, func(lengths *C.size_t, full *C.ferry_region_options, out *C.ferry_region,
		c *C.ferry_error) C.ferry_status {
		// An address is passed as the number that it is: nothing of Go's lies there.
		first := (*unsafe.Pointer)(unsafe.Pointer(&addresses[0]))
		return C.ferry_region_register_batch(e.handle, first, lengths, C.size_t(len(ranges)), full, out, c)
	})
	var registered []*Memory
	for i, region := range regions {
		registered = append(registered, &Memory{engine: e, device: addresses[i], length: lengths[i], region: region})
	}
	return registered, err
}

// location is where the memory is said to be.
func (o *RegionOptions) location() (C.uint32_t, C.int32_t) {
	if o == nil {
		return C.FERRY_MEMORY_AUTO, 0
	}
	return C.uint32_t(o.Kind), C.int32_t(o.Device)
}

// A StartAfter is a point in a device's work, after which a transfer starts; until then the transfer keeps its place
// among Ordered ones, and submitting it does not wait. The event or stream must exist until the transfer is final.
// The zero value is none: the transfer starts at once.
type StartAfter struct {
	kind   uint32
	handle uintptr
}

// AfterCUDAEvent is when a CUevent or cudaEvent_t that was recorded is reached.
func AfterCUDAEvent(event uintptr) StartAfter {
	return StartAfter{C.FERRY_START_AFTER_CUDA_EVENT, event}
}

// AfterCUDAStream is when all is done that a CUstream or cudaStream_t has been given by the time of the submit; 0 is
// the default stream.
func AfterCUDAStream(stream uintptr) StartAfter {
	return StartAfter{C.FERRY_START_AFTER_CUDA_STREAM, stream}
}

// AfterACLEvent is AfterCUDAEvent for an aclrtEvent.
func AfterACLEvent(event uintptr) StartAfter { return StartAfter{C.FERRY_START_AFTER_ACL_EVENT, event} }

// AfterACLStream is AfterCUDAStream for an aclrtStream, whose context must be current on the thread that submits (see
// runtime.LockOSThread); ErrUnsupported elsewhere. Goroutines that change threads use AfterACLEvent.
func AfterACLStream(stream uintptr) StartAfter {
	return StartAfter{C.FERRY_START_AFTER_ACL_STREAM, stream}
}

// StreamWait has a CUstream or cudaStream_t wait: what it is given from here on begins when the transfer is final,
// however it ends, which Wait tells. 0 is the default stream. The call does not wait. Streams of AscendCL can't
// wait so.
func (t *Transfer) StreamWait(stream uintptr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() {
		return nil // and there is nothing to wait for
	}
	return t.engine.call("stream wait", func(c *C.ferry_error) C.ferry_status {
		return C.ferry_transfer_stream_wait(t.engine.handle, t.handle, C.uint64_t(stream), C.FERRY_MEMORY_CUDA, c)
	})
}
