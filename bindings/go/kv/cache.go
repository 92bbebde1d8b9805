package kv

// #include <ferry_kv.h>
import "C"

import (
	"context"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"ferry"
	"ferry/internal/bridge"
	"ferry/internal/watch"
)

// A Cache is one rank's cache in registered memory of an engine. It hands sequences over to the caches of other
// engines, and takes sequences from them. Close it: nothing else frees it.
type Cache struct {
	engine *ferry.Engine
	// Locked for reading in every call into ferry, for writing when the cache is freed.
	mu      sync.RWMutex
	handle  *C.ferry_kv_cache
	left    chan Event // the events that were not taken when the cache was freed
	closing sync.Mutex
	source  *watch.Source

	// Locked inside mu.
	takes sync.Mutex
	stops map[ID]func() bool // of takes whose context may cancel them
}

// CacheOptions are the options of a cache; nil means the defaults.
type CacheOptions struct {
	// Silence is how long a peer that should answer may be silent before the cache gives it up; 0 means 1 second.
	Silence time.Duration
	// LeasedBlocksMax bounds the blocks of offers that are sealed and that no consumer has taken: a seal that exceeds
	// it ends the oldest of these offers. 0 means no bound.
	LeasedBlocksMax uint64
}

// OpenCache opens the cache that a layout describes. Each layer of the rank's own stage lies in one of the memories,
// which stay registered until the cache is closed. An engine has one cache, which takes the notifications of channel 1.
func OpenCache(engine *ferry.Engine, layout *Layout, memory []*ferry.Memory, options *CacheOptions) (*Cache, error) {
	const op = "cache"
	if layout == nil {
		return nil, invalid(op, "layout is nil; kv.NewLayout returns one")
	}
	full := C.ferry_kv_cache_options{struct_size: C.sizeof_ferry_kv_cache_options}
	if options != nil {
		var err error
		if full.silence_ms, err = milliseconds(op, "Silence", options.Silence); err != nil {
			return nil, err
		}
		full.leased_blocks_max = C.uint64_t(options.LeasedBlocksMax)
	}
	ranges := make([]C.ferry_kv_memory, len(memory))
	for i, m := range memory {
		if m == nil {
			return nil, invalid(op, "memory[%d] is nil", i)
		}
		ranges[i] = C.ferry_kv_memory{struct_size: C.sizeof_ferry_kv_memory, region: C.ferry_region(m.Region()),
			address: C.uint64_t(m.Address()), length: C.uint64_t(m.Len())}
	}
	handle, leave, err := bridge.Enter(engine, op)
	if err != nil {
		return nil, err
	}
	defer leave()
	c := &Cache{engine: engine, stops: map[ID]func() bool{}}
	ce := newCError()
	status := C.ferry_kv_cache_open((*C.ferry_engine)(handle), layout.c(), unsafe.SliceData(ranges),
		C.size_t(len(ranges)), &full, &c.handle, &ce)
	runtime.KeepAlive(layout)
	if err := failure(op, status, &ce); err != nil {
		return nil, err
	}
	if c.source, err = newSource(op, c.handle); err != nil {
		C.ferry_kv_cache_close(c.handle, C.FERRY_FOREVER, nil)
		C.ferry_kv_cache_free(c.handle)
		return nil, err
	}
	return c, nil
}

func newSource(op string, handle *C.ferry_kv_cache) (*watch.Source, error) {
	var fd C.int
	c := newCError()
	if err := failure(op, C.ferry_kv_fd(handle, &fd, &c), &c); err != nil {
		return nil, err
	}
	source, err := watch.NewSource(int(fd))
	if err != nil {
		return nil, &ferry.Error{Op: op, Status: ferry.ErrSystem, Message: err.Error(), RequestIndex: -1}
	}
	return source, nil
}

// enter keeps the cache from being freed until mu is unlocked.
func (c *Cache) enter(op string) error {
	if c == nil {
		return invalid(op, "the cache is nil; kv.OpenCache returns one")
	}
	c.mu.RLock()
	if c.handle == nil {
		c.mu.RUnlock()
		return closed(op)
	}
	return nil
}

// call makes one call into ferry.
func (c *Cache) call(op string, f func(ce *C.ferry_error) C.ferry_status) error {
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	ce := newCError()
	return failure(op, f(&ce), &ce)
}

// Close is CloseContext without a time limit.
func (c *Cache) Close() error { return c.CloseContext(context.Background()) }

// CloseContext closes the cache: new work is refused, and all offers and takes end. Then nothing touches their blocks,
// and their events can still be taken. If the context ends first, the error is ErrBusy: the cache is still closing;
// call again. For a closed cache it returns nil. The engine may be closed before or after; takes from several ranks go
// on without a rank that closes its cache first.
func (c *Cache) CloseContext(ctx context.Context) error {
	if c == nil {
		return nil
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.handle == nil { // written under closing
		return nil
	}
	err := bridge.InTurns(ctx, "close", func(timeoutNs uint64, ce unsafe.Pointer) int32 {
		return int32(C.ferry_kv_cache_close(c.handle, C.uint64_t(timeoutNs), (*C.ferry_error)(ce)))
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	var events []Event
	for event, ok, _ := c.taken("close"); ok; event, ok, _ = c.taken("close") {
		events = append(events, event)
	}
	c.left = make(chan Event, len(events))
	for _, event := range events {
		c.left <- event
	}
	close(c.left)
	C.ferry_kv_cache_free(c.handle)
	c.handle = nil
	c.mu.Unlock()
	c.source.Close()
	return nil
}

// milliseconds converts a duration for a field in which 0 means the default. It rounds up.
func milliseconds(op, name string, d time.Duration) (C.uint32_t, error) {
	if d < 0 {
		return 0, invalid(op, "%s is %v; it must not be negative", name, d)
	}
	ms := uint64(d / time.Millisecond)
	if d%time.Millisecond != 0 {
		ms++
	}
	return C.uint32_t(min(ms, 1<<32-1)), nil
}

func closed(op string) *ferry.Error {
	return &ferry.Error{Op: op, Status: ferry.ErrClosed, Message: "the cache is closed", RequestIndex: -1}
}

// handles returns the peers for C. They must be peers of this cache's engine, because another engine's handle could be
// mistaken for one of this engine's.
func (c *Cache) handles(op, name string, peers []ferry.Peer) ([]C.ferry_peer, error) {
	if err := c.enter(op); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	handles := make([]C.ferry_peer, len(peers))
	for i, peer := range peers {
		engine, handle := bridge.Peer(peer)
		if of, _ := engine.(*ferry.Engine); of != c.engine {
			return nil, invalid(op, "%s[%d] is no peer of the cache's engine; Connect of that engine returns one", name, i)
		}
		handles[i] = C.ferry_peer(handle)
	}
	return handles, nil
}

// lists pins the lists of blocks for C.
func lists(m *arguments, blocks []BlockList) (*C.ferry_kv_block_list, C.uint64_t) {
	all := make([]C.ferry_kv_block_list, len(blocks))
	for i, of := range blocks {
		all[i] = C.ferry_kv_block_list{struct_size: C.sizeof_ferry_kv_block_list, first_token: C.uint64_t(of.FirstToken),
			blocks: ids(m, of.IDs), block_count: C.uint64_t(len(of.IDs))}
	}
	return pinned(m, all), C.uint64_t(len(all))
}
