package ferry

// #include <ferry.h>
import "C"

import (
	"context"
	"iter"
	"sync"
	"syscall"
	"unsafe"

	"ferry/internal/watch"
)

// What has the kinds of events that a queue takes.
type What uint32

const (
	Notifications What = C.FERRY_QUEUE_NOTIFICATIONS // of all peers on one channel; one queue of it at a time
	Peers         What = C.FERRY_QUEUE_PEERS         // peers that come and go, and late applies
	PeerStates    What = C.FERRY_QUEUE_PEER_STATES   // connections of known peers that go down or stand again
)

// ChannelsMax is the number of channels of notifications.
const ChannelsMax = C.FERRY_CHANNELS_MAX

// EventKind is the kind of an event. A program should ignore unknown kinds.
type EventKind uint32

const (
	EventNotification EventKind = C.FERRY_EVENT_NOTIFICATION // Data is set
	// EventPeerUp: a session is established, from whichever side; a queue for PeerStates gets it each time the
	// connection stands again.
	EventPeerUp EventKind = C.FERRY_EVENT_PEER_UP
	// EventPeerDown: the connection is lost and made again; EventPeerUp or EventPeerLost follows. Status, Reason
	// and OSError are set.
	EventPeerDown EventKind = C.FERRY_EVENT_PEER_DOWN
	// EventPeerLost: nothing that the peer sends can land here any more. Status, Reason and OSError are set.
	EventPeerLost EventKind = C.FERRY_EVENT_PEER_LOST
	// EventLateApply: bytes of a peer were applied here after their lease had ended. Region, Address and Length
	// are set; the contents of that memory are undefined.
	EventLateApply EventKind = C.FERRY_EVENT_LATE_APPLY
)

// An Event is one event.
type Event struct {
	Kind    EventKind
	Peer    Peer
	Status  Status
	Reason  string        // a sentence; empty if the reason is not known
	OSError syscall.Errno // the cause of the loss, or 0
	Data    []byte
	Channel uint32 // of a notification
	Region  Region
	Address uint64
	Length  uint64
}

// A Queue passes the events of an engine to the goroutines that ask for them. It does not report ends of
// transfers.
type Queue struct {
	engine  *Engine
	handle  C.ferry_queue
	what    What
	channel uint32
	source  *watch.Source
	once    sync.Once
}

// Queue creates a queue for the kinds of events in what, with the notifications of channel 0. A queue that takes
// notifications starts with those that came while no queue took them; ErrBusy while another queue takes them.
func (e *Engine) Queue(what What) (*Queue, error) { return e.ChannelQueue(what, 0) }

// ChannelQueue is Queue with the notifications of another channel. Channels keep the notifications of libraries that
// share an engine apart, each in its own order.
func (e *Engine) ChannelQueue(what What, channel uint32) (*Queue, error) {
	const op = "queue"
	if what == 0 || what&^(Notifications|Peers|PeerStates) != 0 {
		return nil, invalid(op, "what is %v; it must be one or more of Notifications, Peers and PeerStates", what)
	}
	if err := e.enter(op); err != nil {
		return nil, err
	}
	defer e.leave()
	q := &Queue{engine: e, what: what, channel: channel}
	c := newCError()
	status := C.ferry_queue_create_channel(e.handle, C.uint32_t(what), 1, C.uint32_t(channel), &q.handle, &c)
	if err := failure(op, status, &c); err != nil {
		return nil, err
	}
	fd, err := eventfd(e, q.handle)
	if err == nil {
		q.source, err = watch.NewSource(fd)
	}
	if err != nil {
		C.ferry_queue_destroy(e.handle, q.handle, nil)
		return nil, watchError(err)
	}
	e.queues.Store(q, nil)
	return q, nil
}

// Next waits for the next event and takes it. Several goroutines may call it; each event goes to one of them.
// If the context ends, the error holds the context's error, and no event is lost. ErrClosed if the queue or
// the engine is closed.
func (q *Queue) Next(ctx context.Context) (Event, error) {
	const op = "next"
	// The first try avoids the allocations of the wait.
	if event, ok, err := q.drain(op); ok || err != nil {
		return event, err
	}
	var (
		event Event
		err   error
	)
	waited := q.source.Next(ctx, func() bool {
		var ok bool
		event, ok, err = q.drain(op)
		return ok || err != nil
	})
	switch waited {
	case nil:
		return event, err
	case watch.ErrOver:
		return Event{}, closedError(op)
	}
	return Event{}, ended(op, waited)
}

// Events has each event, as Next takes it. It ends with Next's error, when the context ends or the queue or the engine
// is closed.
func (q *Queue) Events(ctx context.Context) iter.Seq2[Event, error] { return watch.Each(ctx, q.Next) }

// drain takes an event if the queue has one; a drain that finds none arms the eventfd.
func (q *Queue) drain(op string) (Event, bool, error) {
	var c C.ferry_event
	var count C.size_t
	err := q.engine.call(op, func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_queue_drain(q.engine.handle, q.handle, &c, C.sizeof_ferry_event, 1, &count, ce)
	})
	if err != nil || count == 0 {
		return Event{}, false, err
	}
	event := Event{
		Kind:    EventKind(c.kind),
		Channel: uint32(c.channel),
		Peer:    Peer{q.engine, uint64(c.peer)},
		Status:  Status(c.status),
		Region:  Region(c.region),
		Address: uint64(c.address),
		Length:  uint64(c.length),
	}
	bytes := unsafe.Slice((*byte)(c.data), int(c.data_length))
	switch c.kind {
	case C.FERRY_EVENT_NOTIFICATION:
		event.Data = append([]byte{}, bytes...)
	case C.FERRY_EVENT_PEER_LOST, C.FERRY_EVENT_PEER_DOWN:
		event.Reason, event.OSError = string(bytes), syscall.Errno(c.os_error)
	}
	C.ferry_event_release(&c)
	return event, true, nil
}

// Close closes the queue; goroutines that wait for its events get ErrClosed. Undrained notifications wait for
// the next queue that takes them. A second Close returns nil.
func (q *Queue) Close() error {
	var err error
	q.once.Do(func() {
		q.end()
		err = q.engine.call("close queue", func(c *C.ferry_error) C.ferry_status {
			return C.ferry_queue_destroy(q.engine.handle, q.handle, c)
		})
	})
	return err
}

// shut closes the queue of a closed engine, which has destroyed it already.
func (q *Queue) shut() { q.once.Do(q.end) }

func (q *Queue) end() {
	q.source.Close()
	q.engine.queues.Delete(q)
}
