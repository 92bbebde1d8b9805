package kv

// #include <ferry_kv.h>
import "C"

import (
	"context"
	"errors"
	"time"

	"ferry"
	"ferry/internal/bridge"
)

// Mode is which side moves the bytes.
type Mode uint32

// The modes.
const (
	ModeAuto Mode = C.FERRY_KV_MODE_AUTO // ModePull on the same host, else ModePush
	ModePull Mode = C.FERRY_KV_MODE_PULL // the consumer reads the producer's memory
	ModePush Mode = C.FERRY_KV_MODE_PUSH // the producer writes into the consumer's memory
)

// TakeOptions are the options of a take; nil means the defaults.
type TakeOptions struct {
	Mode Mode
	// Taker is any number that all ranks of one consumer have, and no other consumer of the offer; 0 means 1.
	Taker uint64
	// SkipTokens are the tokens at the beginning that the consumer has already.
	SkipTokens uint64
	// Layers asks for an EventLayers as layers become complete.
	Layers bool
}

// Take takes the first tokens of a handoff into blocks, one list for each group of the layout. producers are all ranks
// of the producer, by their numbers. Take does not wait, and may be called before the offer is made; its events report
// its progress. The blocks belong to the take until its terminal event.
//
// The context belongs to the take. If it is cancelled, the take is cancelled, as by CancelTake. If its deadline passes,
// the take fails with ErrTimeout. In both cases the terminal event follows.
func (c *Cache) Take(ctx context.Context, id ID, producers []ferry.Peer, blocks []BlockList, tokens uint64, options *TakeOptions) error {
	const op = "take"
	if cause := ctx.Err(); cause != nil {
		return bridge.Ended(op, cause)
	}
	if options == nil {
		options = &TakeOptions{}
	}
	peers, err := c.handles(op, "producers", producers)
	if err != nil {
		return err
	}
	var m arguments
	defer m.free()
	full := C.ferry_kv_take_options{
		struct_size: C.sizeof_ferry_kv_take_options, mode: C.uint32_t(options.Mode), taker: C.uint64_t(max(options.Taker, 1)),
		producers: pinned(&m, peers), producer_count: C.uint64_t(len(peers)),
		skip_tokens: C.uint64_t(options.SkipTokens), tokens: C.uint64_t(tokens),
	}
	full.blocks, full.group_count = lists(&m, blocks)
	if options.Layers {
		full.flags = C.FERRY_KV_TAKE_LAYERS
	}
	if deadline, ok := ctx.Deadline(); ok {
		full.deadline_ns = C.uint64_t(max(time.Until(deadline), 1)) // 0 would mean none
	}
	return c.call(op, func(ce *C.ferry_error) C.ferry_status {
		// The lock makes forget wait until the stop function is stored.
		c.takes.Lock()
		defer c.takes.Unlock()
		status := C.ferry_kv_take(c.handle, id.c(), &full, ce)
		if status == C.FERRY_OK && ctx.Done() != nil {
			c.stops[id] = context.AfterFunc(ctx, func() { c.cancelWith(ctx, id) })
		}
		return status
	})
}

// cancelWith cancels the take when its context has been cancelled. ferry itself enforces the context's deadline.
func (c *Cache) cancelWith(ctx context.Context, id ID) {
	if _, ok := ctx.Deadline(); ok && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	c.CancelTake(id) // fails if the take has ended
}

// forget detaches a take that has ended from its context.
func (c *Cache) forget(id ID) {
	c.takes.Lock()
	stop := c.stops[id]
	delete(c.stops, id)
	c.takes.Unlock()
	if stop != nil {
		stop()
	}
}

// CancelTake asks a take to end; its terminal event follows.
func (c *Cache) CancelTake(id ID) error {
	return c.call("cancel take", func(ce *C.ferry_error) C.ferry_status { return C.ferry_kv_take_cancel(c.handle, id.c(), ce) })
}
