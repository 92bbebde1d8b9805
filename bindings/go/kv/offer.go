package kv

// #include <ferry_kv.h>
import "C"

import (
	"context"
	"time"
	"unsafe"

	"ferry"
	"ferry/internal/bridge"
)

// OfferOptions are the options of an offer; nil means the defaults.
type OfferOptions struct {
	// Takers is how many consumers take the offer, each with all of its ranks: 1 to 64; 0 means 1.
	Takers uint32
	// Only are the peers that may take the offer. nil means every peer.
	Only []ferry.Peer
	// Lease is the time from Seal on within which all takers must be there; 0 means 30 seconds.
	Lease time.Duration
}

// Offer offers blocks of a sequence, one list for each group of the layout. Nothing is ready yet: Ready declares what
// is computed. The blocks belong to the offer until its terminal event, and the application must not write tokens that
// are ready.
func (c *Cache) Offer(id ID, blocks []BlockList, options *OfferOptions) error {
	const op = "offer"
	if options == nil {
		options = &OfferOptions{}
	}
	only, err := c.handles(op, "Only", options.Only)
	if err != nil {
		return err
	}
	if options.Only != nil && len(only) == 0 {
		return invalid(op, "Only has no peers: nobody could take the offer")
	}
	lease, err := milliseconds(op, "Lease", options.Lease)
	if err != nil {
		return err
	}
	var m arguments
	defer m.free()
	full := C.ferry_kv_offer_options{
		struct_size: C.sizeof_ferry_kv_offer_options, takers: C.uint32_t(options.Takers), lease_ms: lease,
		only: pinned(&m, only), only_count: C.uint64_t(len(only)),
	}
	full.blocks, full.group_count = lists(&m, blocks)
	return c.call(op, func(ce *C.ferry_error) C.ferry_status { return C.ferry_kv_offer(c.handle, id.c(), &full, ce) })
}

// Extend adds blocks to an offer, as they are allocated: one list for each group. A list's FirstToken is read
// only if the group has no blocks.
func (c *Cache) Extend(id ID, blocks []BlockList) error {
	var m arguments
	defer m.free()
	first, count := lists(&m, blocks)
	return c.call("extend", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_offer_extend(c.handle, id.c(), first, C.size_t(count), ce)
	})
}

// Ready declares that the first `tokens` tokens of the sequence are in their blocks, in all layers.
func (c *Cache) Ready(id ID, tokens uint64) error { return c.ready(id, 0, C.UINT32_MAX, tokens) }

// ReadyLayers declares the same for the layers from first to before end. Layers become ready in their order, again for
// each chunk of a prefill; ready tokens may move at once.
func (c *Cache) ReadyLayers(id ID, first, end uint32, tokens uint64) error {
	return c.ready(id, C.uint32_t(first), C.uint32_t(end), tokens)
}

func (c *Cache) ready(id ID, first, end C.uint32_t, tokens uint64) error {
	return c.call("ready", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_offer_ready(c.handle, id.c(), first, end, C.uint64_t(tokens), ce)
	})
}

// Retract takes back the tokens from fromToken on, and the seal. It returns when nothing reads or writes them any more:
// the blocks that hold only such tokens are the caller's, and the offer continues with Extend. If the context ends
// first, the error is ErrBusy and no block is free: call again. ErrStale: the offer has ended or is ending.
func (c *Cache) Retract(ctx context.Context, id ID, fromToken uint64) error {
	return c.inTurns(ctx, "retract", func(timeout C.uint64_t, ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_offer_retract(c.handle, id.c(), C.uint64_t(fromToken), timeout, ce)
	})
}

// RetractWindow frees the blocks of a window group, given by its number, that have only tokens before beforeToken. It
// waits and fails as Retract does. A take that needs the blocks and has not begun to copy them fails.
func (c *Cache) RetractWindow(ctx context.Context, id ID, group uint32, beforeToken uint64) error {
	return c.inTurns(ctx, "retract window", func(timeout C.uint64_t, ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_offer_retract_window(c.handle, id.c(), C.uint32_t(group), C.uint64_t(beforeToken), timeout, ce)
	})
}

// inTurns makes a call in turns; each turn continues the work of the turn before it.
func (c *Cache) inTurns(ctx context.Context, op string, f func(timeout C.uint64_t, ce *C.ferry_error) C.ferry_status) error {
	if err := c.enter(op); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	return bridge.InTurns(ctx, op, func(timeoutNs uint64, ce unsafe.Pointer) int32 {
		return int32(f(C.uint64_t(timeoutNs), (*C.ferry_error)(ce)))
	})
}

// Seal declares that the sequence has `tokens` tokens, and that no more blocks follow. The lease begins. Layers may
// still become ready.
func (c *Cache) Seal(id ID, tokens uint64) error {
	return c.call("seal", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_offer_seal(c.handle, id.c(), C.uint64_t(tokens), ce)
	})
}

// CancelOffer asks an offer to end; its terminal event follows.
func (c *Cache) CancelOffer(id ID) error {
	return c.call("cancel offer", func(ce *C.ferry_error) C.ferry_status { return C.ferry_kv_offer_cancel(c.handle, id.c(), ce) })
}

// Reclaim ends sealed offers that no consumer has taken, first those whose lease ends first, until `blocks` blocks are
// free. It returns how many are. Their terminal event is EventExpired.
func (c *Cache) Reclaim(blocks int) (int, error) {
	if blocks < 0 {
		return 0, invalid("reclaim", "blocks is %d; it must not be negative", blocks)
	}
	var freed C.size_t
	err := c.call("reclaim", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_reclaim(c.handle, C.size_t(blocks), &freed, ce)
	})
	return int(freed), err
}
