package ferry

// #cgo noescape ferry_queue_drain
// #cgo nocallback ferry_queue_drain
// #include <ferry.h>
import "C"

import (
	"sync"
	"sync/atomic"
	"syscall"

	"ferry/internal/watch"
)

// A reactor gets the ends of an engine's transfers and connects from a ferry queue, and completes their
// waiters.
//
// A transfer that ends while its submitter polls leaves an event that is not needed. While the queue has only
// such events, it is left alone: its eventfd, raised once, costs no system call, and a submitter sweeps the
// queue now and then. A goroutine watches the queue only while a waiter is registered.
//
// Connects have their own reactor. Its queue also gets all peer events, and is always watched, so that they
// do not pile up.
type reactor struct {
	engine *Engine
	always bool // watched all the time
	queue  C.ferry_queue
	watch  *watch.Watch

	mu      sync.Mutex
	waiting map[uint64]completer
	// Signalled when `waiting` is no longer empty.
	wake chan struct{}
	quit chan struct{}
	gone chan struct{}

	ids     atomic.Uint64
	unswept atomic.Int64 // events that nobody waits for, drained ones taken off
	sweep   sync.Mutex
	swept   [sweepEvents]C.ferry_event
}

const sweepEvents = 128

// A completer is a transfer or a connect that waits for its event. Each event with its id completes it at
// most once, on the reactor's goroutine or a submitter's. complete must not block.
type completer interface{ complete(event *C.ferry_event) }

func newReactor(engine *Engine, what C.uint32_t, capacity int) (*reactor, error) {
	r := &reactor{
		engine:  engine,
		always:  what&C.FERRY_QUEUE_PEERS != 0,
		waiting: map[uint64]completer{},
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		gone:    make(chan struct{}),
	}
	c := newCError()
	// Room for all transfers or connects in progress, and for events that are not swept yet.
	capacity = min(capacity+8*sweepEvents, 1<<20)
	status := C.ferry_queue_create(engine.handle, what, C.size_t(capacity), &r.queue, &c)
	if err := failure("open", status, &c); err != nil {
		return nil, err
	}
	fd, err := eventfd(engine, r.queue)
	if err != nil {
		return nil, err
	}
	if r.watch, err = watch.New(fd); err != nil {
		return nil, watchError(err)
	}
	if r.always {
		r.wake <- struct{}{}
	}
	go r.run()
	return r, nil
}

func (r *reactor) run() {
	defer close(r.gone)
	var events [sweepEvents]C.ferry_event
	for {
		select {
		case <-r.wake:
		case <-r.quit:
			return
		}
		for r.busy() {
			count := 0
			err := r.watch.Until(func() bool {
				count = r.drain(events[:])
				return count != 0
			})
			r.dispatch(events[:count])
			if err != nil {
				return
			}
		}
	}
}

func (r *reactor) busy() bool {
	if r.always {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0
}

// add registers a waiter. Its event may have come already, so the caller checks once more afterwards.
func (r *reactor) add(id uint64, who completer) {
	r.mu.Lock()
	first := len(r.waiting) == 0
	r.waiting[id] = who
	r.mu.Unlock()
	if first {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// take removes a waiter; nil if none is registered.
func (r *reactor) take(id uint64) completer {
	r.mu.Lock()
	defer r.mu.Unlock()
	who := r.waiting[id]
	delete(r.waiting, id)
	return who
}

// leftBehind counts an event that nobody waits for, and sweeps the queue when there are many.
func (r *reactor) leftBehind() {
	if r.unswept.Add(1) < sweepEvents || !r.sweep.TryLock() {
		return
	}
	defer r.sweep.Unlock()
	// Drain only as many as are expected: a drain that finds fewer arms the eventfd.
	for r.unswept.Load() >= sweepEvents && r.sweepOnce() {
	}
}

// sweepOnce returns true if the queue may have more events.
func (r *reactor) sweepOnce() bool {
	count := r.drain(r.swept[:])
	r.dispatch(r.swept[:count])
	return count == len(r.swept)
}

func (r *reactor) drain(events []C.ferry_event) int {
	var count C.size_t
	C.ferry_queue_drain(r.engine.handle, r.queue, &events[0], C.sizeof_ferry_event, C.size_t(len(events)), &count, nil)
	return int(count)
}

func (r *reactor) dispatch(events []C.ferry_event) {
	for i := range events {
		event := &events[i]
		if event.kind == C.FERRY_EVENT_TRANSFER || event.kind == C.FERRY_EVENT_PEER_CONNECTED {
			if who := r.take(uint64(event.user_data)); who != nil {
				who.complete(event)
			} else {
				r.unswept.Add(-1)
			}
		}
		// An event that nobody waits for has data, too: PEER_LOST has its reason.
		if event.data != nil {
			// A copy: cgo passes no pointer into memory that has Go's pointers.
			given := *event
			C.ferry_event_release(&given)
		}
	}
}

// stop delivers the remaining events of the closed engine's queue, then CLOSED to the remaining waiters.
func (r *reactor) stop() {
	close(r.quit)
	r.watch.Close()
	<-r.gone
	r.sweep.Lock()
	for r.sweepOnce() {
	}
	r.sweep.Unlock()
	r.mu.Lock()
	left := r.waiting
	r.waiting = map[uint64]completer{}
	r.mu.Unlock()
	for _, who := range left {
		who.complete(&C.ferry_event{status: C.FERRY_ERR_CLOSED})
	}
}

// eventfd returns the descriptor of a queue.
func eventfd(engine *Engine, queue C.ferry_queue) (int, error) {
	var fd C.int
	c := newCError()
	err := failure("eventfd", C.ferry_queue_fd(engine.handle, queue, &fd, &c), &c)
	return int(fd), err
}

// watchError makes an error of package watch one of this package.
func watchError(err error) error {
	errno, ok := err.(syscall.Errno)
	if !ok {
		return err
	}
	return &Error{Op: "eventfd", Status: ErrSystem, OSError: errno, Message: errno.Error(), RequestIndex: -1}
}
