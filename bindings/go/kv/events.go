package kv

// #include <ferry_kv.h>
import "C"

import (
	"context"
	"iter"
	"unsafe"

	"ferry"
	"ferry/internal/bridge"
	"ferry/internal/watch"
)

// EventKind is the kind of an event. A program should ignore unknown kinds.
type EventKind uint32

const (
	// EventLayers, for a take with TakeOptions.Layers: the layers before Layers are complete, and may be read. All
	// other kinds are terminal.
	EventLayers    EventKind = C.FERRY_KV_EVENT_LAYERS
	EventSent      EventKind = C.FERRY_KV_EVENT_SENT      // for an offer: all takers have the whole sequence
	EventReceived  EventKind = C.FERRY_KV_EVENT_RECEIVED  // for a take: all of its tokens are in their blocks
	EventFailed    EventKind = C.FERRY_KV_EVENT_FAILED    // Status and Message say why
	EventCancelled EventKind = C.FERRY_KV_EVENT_CANCELLED // by a call, a context, or because the cache was closed
	EventExpired   EventKind = C.FERRY_KV_EVENT_EXPIRED   // for an offer: its lease was over, or it was reclaimed
	EventPeerLost  EventKind = C.FERRY_KV_EVENT_PEER_LOST // Peer is lost, or has lost another; nothing of it can land here
)

// A Block is a block of a group.
type Block struct {
	// Group is an index into the layout's groups, Block the id.
	Group, Block uint32
}

// An Event reports what has happened to an offer or a take. Each has exactly one terminal event, after which nothing
// touches its blocks. Fields that the kind doesn't set are zero.
type Event struct {
	Kind EventKind
	// ID is the ID of the offer or take.
	ID ID
	// Status and Message say why the offer or take has ended: OK and "", or a sentence.
	Status  ferry.Status
	Message string
	// Rank and Peer say which rank of the other side was lost, failed or ended the handoff; -1 and the zero Peer if
	// none.
	Rank int
	Peer ferry.Peer
	// Layers is how many layers are complete, in the order of the layout.
	Layers uint32
	// ValidTokens are the tokens from the beginning of a take that are complete in all layers and groups.
	ValidTokens uint64
	// Untrusted are the blocks of a take whose contents are undefined.
	Untrusted []Block
}

// Terminal is true if the offer or take has ended: its blocks are the caller's.
func (e Event) Terminal() bool { return e.Kind != 0 && e.Kind != EventLayers }

// Err returns nil if nothing went wrong, and otherwise a *ferry.Error with the event's Status and Message.
func (e Event) Err() error {
	if e.Status == ferry.OK {
		return nil
	}
	return &ferry.Error{Op: "handoff", Status: e.Status, Message: e.Message, RequestIndex: -1}
}

// Poll takes the next event, oldest first; false if there is none. It never waits. ErrClosed: the cache or its engine
// is closed, and there are no more events.
func (c *Cache) Poll() (Event, bool, error) {
	const op = "poll"
	if c == nil {
		return Event{}, false, c.enter(op)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.handle != nil {
		return c.taken(op)
	}
	select {
	case event, ok := <-c.left:
		if ok {
			return event, true, nil
		}
	default:
	}
	return Event{}, false, closed(op)
}

// taken takes an event of C's cache. The caller holds mu.
func (c *Cache) taken(op string) (Event, bool, error) {
	from := C.ferry_kv_event{struct_size: C.sizeof_ferry_kv_event}
	ce := newCError()
	status := C.ferry_kv_poll(c.handle, &from, &ce)
	if status != C.FERRY_OK {
		return Event{}, false, failure(op, status, &ce)
	}
	event := Event{
		Kind:        EventKind(from.kind),
		ID:          *(*ID)(unsafe.Pointer(&from.id)),
		Status:      ferry.Status(from.status),
		Message:     C.GoStringN(from.message, C.int(from.message_length)),
		Rank:        int(int32(from.rank)), // UINT32_MAX is none
		Layers:      uint32(from.layers),
		ValidTokens: uint64(from.valid_tokens),
	}
	if from.peer != 0 {
		event.Peer = bridge.MakePeer(c.engine, uint64(from.peer)).(ferry.Peer)
	}
	for _, block := range unsafe.Slice(from.untrusted, int(from.untrusted_count)) {
		event.Untrusted = append(event.Untrusted, Block{uint32(block.group), uint32(block.block)})
	}
	C.ferry_kv_event_release(&from)
	if event.Terminal() {
		c.forget(event.ID)
	}
	return event, true, nil
}

// Events has each event, as Next takes it. It ends with Next's error, when the context ends or the cache is closed.
func (c *Cache) Events(ctx context.Context) iter.Seq2[Event, error] { return watch.Each(ctx, c.Next) }

// Next waits for the next event and takes it. The goroutine is parked, and holds no thread. Several goroutines may call
// it; each event goes to one of them. If the context ends, the error holds the context's error, and no event is lost.
// Next returns ErrClosed as Poll does; closing the cache ends the wait.
func (c *Cache) Next(ctx context.Context) (Event, error) {
	const op = "next"
	var (
		event Event
		ok    bool
		err   error
	)
	poll := func() bool {
		event, ok, err = c.Poll()
		return ok || err != nil
	}
	switch waited := c.source.Next(ctx, poll); waited {
	case nil:
	case watch.ErrOver:
		poll() // an event that was left, or ErrClosed
	default:
		return Event{}, bridge.Ended(op, waited)
	}
	return event, err
}

// StateKind is the state of an ID in a cache.
type StateKind uint32

// The kinds of states.
const (
	StateUnknown StateKind = C.FERRY_KV_STATE_UNKNOWN // no offer and no take, or one that ended long ago
	StateOffered StateKind = C.FERRY_KV_STATE_OFFERED // an offer that has not ended: Sealed and Takers are set
	StateTaking  StateKind = C.FERRY_KV_STATE_TAKING  // a take that has not ended: ValidTokens is set
	StateEnding  StateKind = C.FERRY_KV_STATE_ENDING  // stopped; the blocks are not the caller's yet
	StateEnded   StateKind = C.FERRY_KV_STATE_ENDED   // Event is set; it may not have been taken yet
)

// A State is what a cache knows of an ID.
type State struct {
	Kind   StateKind
	Sealed bool
	// Takers is how many consumers have begun to take the offer.
	Takers int
	// ValidTokens are the tokens from the beginning that are complete.
	ValidTokens uint64
	// Event is the kind of the terminal event.
	Event EventKind
}

// State returns what the cache knows of an ID.
func (c *Cache) State(id ID) (State, error) {
	state := C.ferry_kv_state{struct_size: C.sizeof_ferry_kv_state}
	err := c.call("state", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_get_state(c.handle, id.c(), &state, ce)
	})
	if err != nil {
		return State{}, err
	}
	return State{StateKind(state.kind), state.is_sealed != 0, int(state.takers), uint64(state.valid_tokens),
		EventKind(state.event)}, nil
}

// UnfencedBlocks returns how many blocks belong to handoffs with silent peers that could not be fenced: processes of
// this host that were stopped in the middle of a copy. Their handoffs end when the process continues or ends.
func (c *Cache) UnfencedBlocks() (int, error) {
	var count C.size_t
	err := c.call("unfenced blocks", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_unfenced_blocks(c.handle, &count, ce)
	})
	return int(count), err
}
