package ferry

// #include <stdlib.h>
// #include <ferry.h>
import "C"

import (
	"context"
	"sync/atomic"
	"unsafe"
)

// A Region names registered memory, of this engine or of a peer. 0 is no region.
type Region uint64

// Access has the operations that peers may do on a region.
type Access uint32

// The operations that peers may do.
const (
	RemoteRead  Access = C.FERRY_ACCESS_REMOTE_READ
	RemoteWrite Access = C.FERRY_ACCESS_REMOTE_WRITE
)

// RegionOptions are the options of a region. With nil, or an Access of 0, peers may read and write.
type RegionOptions struct {
	Access Access
	// Name is the name under which peers find the region; at most 63 bytes.
	Name string
	// Kind is the kind of memory, and Device the number of its device; a wrong value is an error. With a Kind of
	// 0 ferry detects both.
	Kind   MemoryKind
	Device int32
}

// Memory is registered memory. Close unregisters it.
type Memory struct {
	engine    *Engine
	address   unsafe.Pointer // nil for a device's
	device    uintptr        // the address of a device's
	length    int
	region    Region
	allocated bool
	closed    atomic.Bool
}

// Alloc returns memory that ferry allocates: page-aligned and zeroed. Peers of the same user on this host map
// it, which makes transfers with them the fastest.
func (e *Engine) Alloc(length int, options *RegionOptions) (*Memory, error) {
	const op = "alloc"
	if length <= 0 {
		return nil, invalid(op, "length is %d; it must be at least 1", length)
	}
	full := C.ferry_alloc_options{struct_size: C.sizeof_ferry_alloc_options}
	full.access, full.name = options.full()
	full.kind, full.device = options.location()
	defer C.free(unsafe.Pointer(full.name))
	m := &Memory{engine: e, length: length, allocated: true}
	var region C.ferry_region
	err := e.call(op, func(c *C.ferry_error) C.ferry_status {
		var address unsafe.Pointer
		// The options hold only C memory, so cgo's rules allow their address.
		status := C.ferry_memory_alloc(e.handle, C.size_t(length), &full, &address, &region, c)
		m.address = address
		return status
	})
	m.region = Region(region)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Register registers C memory or a mapping. ferry borrows it until Close of the result or of the engine has
// returned; it must stay mapped until then. Memory of Go's heap is refused with ErrInvalid, except under
// GODEBUG=cgocheck=0.
func (e *Engine) Register(address unsafe.Pointer, length int, options *RegionOptions) (*Memory, error) {
	registered, err := e.RegisterBatch([]Range{{address, length}}, options)
	if err != nil {
		return nil, err
	}
	return registered[0], nil
}

// A Range is a range of memory to register.
type Range struct {
	Address unsafe.Pointer
	Length  int
}

// RegisterBatch registers several ranges with the same options, all or none, and announces them together. The
// results are in the same order; RequestIndex of an error is the index of the range that failed.
func (e *Engine) RegisterBatch(ranges []Range, options *RegionOptions) (registered []*Memory, err error) {
	addresses, lengths := make([]unsafe.Pointer, len(ranges)), make([]int, len(ranges))
	for i, r := range ranges {
		addresses[i], lengths[i] = r.Address, r.Length
	}
	defer func() {
		// cgo panics if it finds an address of Go memory in the list.
		if reason := recover(); reason != nil {
			registered, err = nil, invalid("register", "address: it is Go memory, which cannot be registered; Engine.Alloc returns memory (%v)", reason)
		}
	}()
	regions, err := e.register(lengths, options, func(lengths *C.size_t, full *C.ferry_region_options, out *C.ferry_region,
		c *C.ferry_error) C.ferry_status {
		return C.ferry_region_register_batch(e.handle, &addresses[0], lengths, C.size_t(len(ranges)), full, out, c)
	})
	for i, region := range regions {
		registered = append(registered, &Memory{engine: e, address: addresses[i], length: lengths[i], region: region})
	}
	return registered, err
}

// register registers one piece of memory per length; f has their addresses.
func (e *Engine) register(lengths []int, options *RegionOptions,
	f func(*C.size_t, *C.ferry_region_options, *C.ferry_region, *C.ferry_error) C.ferry_status) ([]Region, error) {
	const op = "register"
	if len(lengths) == 0 {
		return nil, nil
	}
	sizes, out := make([]C.size_t, len(lengths)), make([]C.ferry_region, len(lengths))
	for i, length := range lengths {
		if length <= 0 {
			err := invalid(op, "length is %d; it must be at least 1", length)
			err.RequestIndex = i
			return nil, err
		}
		sizes[i] = C.size_t(length)
	}
	full := C.ferry_region_options{struct_size: C.sizeof_ferry_region_options}
	full.access, full.name = options.full()
	full.kind, full.device = options.location()
	defer C.free(unsafe.Pointer(full.name))
	err := e.call(op, func(c *C.ferry_error) C.ferry_status { return f(&sizes[0], &full, &out[0], c) })
	if err != nil {
		return nil, err
	}
	regions := make([]Region, len(out))
	for i, region := range out {
		regions[i] = Region(region)
	}
	return regions, nil
}

// full returns the access, and the name as C memory that the caller frees.
func (o *RegionOptions) full() (C.uint32_t, *C.char) {
	access, name := RemoteRead|RemoteWrite, ""
	if o != nil {
		name = o.Name
		if o.Access != 0 {
			access = o.Access
		}
	}
	if name == "" {
		return C.uint32_t(access), nil
	}
	return C.uint32_t(access), C.CString(name)
}

// Bytes is a view of the memory; nil after Close, and for memory of RegisterDevice. A view must not be
// touched after Close or CloseContext of the memory, or Close of its engine, has returned nil. Only the end of a
// transfer and a notification order the accesses of peers and transfers with the reads and writes of this
// process.
func (m *Memory) Bytes() []byte {
	if m.address == nil || m.closed.Load() || m.engine.closed.Load() {
		return nil
	}
	return unsafe.Slice((*byte)(m.address), m.length)
}

// Address is the start of the memory, for Request.Local here and Request.Remote at peers.
func (m *Memory) Address() uint64 { return uint64(uintptr(m.address)) + uint64(m.device) }

// Len is its length in bytes.
func (m *Memory) Len() int { return m.length }

// Region is the handle of the memory, for Request.RemoteRegion at peers.
func (m *Memory) Region() Region { return m.region }

// Close is CloseContext without a time limit.
func (m *Memory) Close() error { return m.CloseContext(context.Background()) }

// CloseContext unregisters the memory, and unmaps memory of Alloc: after nil nothing can reach it through ferry. It
// waits while the memory is in use. If the context ends first, the error is ErrBusy: the memory is still
// there but closed for new work; call again. For closed memory, and for memory of a closed engine, it returns nil.
func (m *Memory) CloseContext(ctx context.Context) error {
	e := m.engine
	if e.enter("free") != nil {
		return nil
	}
	defer e.leave()
	err := closing(inTurns(ctx, "free", func(timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
		if m.allocated {
			return C.ferry_memory_free(e.handle, C.ferry_region(m.region), timeout, c)
		}
		return C.ferry_region_unregister(e.handle, C.ferry_region(m.region), timeout, c)
	}))
	if err == nil {
		m.closed.Store(true)
	}
	return err
}
