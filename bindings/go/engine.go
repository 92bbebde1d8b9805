// Package ferry moves bytes between the memories of processes and machines. It is the Go binding of libferry,
// whose contracts (docs/contracts.md, include/ferry.h) hold here.
//
// An [Engine] holds registered [Memory], connects to a [Peer], and moves bytes between the two. Any goroutine
// may call any method.
//
// # Memory
//
// Only memory outside Go's heap can be registered: [Engine.Alloc] returns such memory, [Engine.Register]
// takes C memory or a mapping. [Memory.Bytes] is a view of the memory. The view is valid until the memory or
// the engine is closed; touching it later is a fault that Go cannot catch. The ranges of a transfer belong to
// the transfer from its submission until it is final.
//
// # Contexts
//
// When the context of a transfer ends, the call cancels the transfer and waits until it is final. After the
// call has returned, ferry no longer touches the memory, whatever the result is. That takes at most the
// setting lease_ms.
//
// # Goroutines and threads
//
// A goroutine that waits for a transfer or an event is parked on Go's netpoller, on the eventfd of a queue,
// and holds no thread. A small synchronous transfer with a peer on this host is one copy in the calling
// thread. The submitter of another small transfer first polls for some microseconds, because the transfer
// then ends soonest.
//
// Package ferry/kv hands the KV caches of sequences over.
package ferry

// #cgo pkg-config: ferry
// #include <stdlib.h>
// #include <ferry.h>
import "C"

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Version returns the version of the loaded library.
func Version() string { return C.GoString(C.ferry_version()) }

// An Engine registers memory, connects to peers, and moves bytes. Close it: nothing else frees it.
type Engine struct {
	// Locked for reading in every call into ferry, for writing when the engine is freed.
	mu       sync.RWMutex
	handle   *C.ferry_engine
	closed   atomic.Bool
	closing  sync.Mutex
	reactor  *reactor // of transfers
	connects *reactor
	queues   sync.Map // *Queue, those that are open
}

// The largest number of connects in progress.
const connectsMax = 1024

// Open starts an engine. A nil config means the defaults and the FERRY_* environment variables.
func Open(config Config) (*Engine, error) {
	made, err := config.make()
	if err != nil {
		return nil, err
	}
	defer C.ferry_config_free(made)
	e := &Engine{}
	c := newCError()
	if err := failure("open", C.ferry_engine_open(made, &e.handle, &c), &c); err != nil {
		return nil, err
	}
	if e.reactor, err = newReactor(e, C.FERRY_QUEUE_TRANSFERS, number(made, "transfers_max")); err == nil {
		e.connects, err = newReactor(e, C.FERRY_QUEUE_PEERS, connectsMax)
	}
	if err != nil {
		if e.reactor != nil {
			e.reactor.stop()
		}
		C.ferry_engine_close(e.handle, C.FERRY_FOREVER, nil)
		C.ferry_engine_free(e.handle)
		return nil, err
	}
	return e, nil
}

// enter keeps the engine from being freed until leave.
func (e *Engine) enter(op string) error {
	if e == nil {
		return invalid(op, "the engine is nil; ferry.Open returns one")
	}
	e.mu.RLock()
	if e.handle == nil {
		e.mu.RUnlock()
		return closedError(op)
	}
	return nil
}

func (e *Engine) leave() { e.mu.RUnlock() }

// call makes one call into ferry.
func (e *Engine) call(op string, f func(c *C.ferry_error) C.ferry_status) error {
	if err := e.enter(op); err != nil {
		return err
	}
	defer e.leave()
	c := newCError()
	return failure(op, f(&c), &c)
}

// Close is CloseContext without a time limit; lease_ms bounds the wait for transfers.
func (e *Engine) Close() error { return e.CloseContext(context.Background()) }

// CloseContext closes the engine: new work is refused, every transfer becomes final, waits return, and neither
// the engine nor a peer touches registered memory any more. Then it frees the memory of Alloc, whose views
// must not be touched from then on. If the context ends first, the error is ErrBusy: the engine is still
// closing; call again. For a closed engine it returns nil.
func (e *Engine) CloseContext(ctx context.Context) error {
	if e == nil {
		return nil
	}
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.closed.Load() {
		return nil
	}
	err := inTurns(ctx, "close", func(timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_engine_close(e.handle, timeout, c)
	})
	if err != nil {
		return err
	}
	e.closed.Store(true)
	e.queues.Range(func(queue, _ any) bool {
		queue.(*Queue).shut()
		return true
	})
	e.reactor.stop()
	e.connects.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	C.ferry_engine_free(e.handle)
	e.handle = nil
	return nil
}

// Address returns the "host:port" at which peers reach the engine; "" if it does not listen, or is closed.
func (e *Engine) Address() string {
	text, err := e.bytes("address", func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t,
		c *C.ferry_error) C.ferry_status {
		return C.ferry_engine_address(e.handle, (*C.char)(buffer), capacity, length, c)
	})
	if err != nil {
		return ""
	}
	return string(text)
}

// Warnings returns the warnings of an engine that has opened nevertheless: one for each FERRY_* variable of the
// environment that is no setting, with the setting whose name is nearest. It returns nil if there are no warnings, or
// if the engine is closed.
func (e *Engine) Warnings() []string {
	text, err := e.bytes("warnings", func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t,
		c *C.ferry_error) C.ferry_status {
		return C.ferry_engine_warnings(e.handle, (*C.char)(buffer), capacity, length, c)
	})
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(string(text), "\n")
}

// Metrics returns the statistics in Prometheus' text format.
func (e *Engine) Metrics() (string, error) {
	text, err := e.bytes("metrics", func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t,
		c *C.ferry_error) C.ferry_status {
		return C.ferry_engine_metrics(e.handle, (*C.char)(buffer), capacity, length, c)
	})
	return string(text), err
}

// Descriptor returns the address and identity of this engine, for another engine's Import.
func (e *Engine) Descriptor() ([]byte, error) {
	return e.bytes("descriptor", func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t,
		c *C.ferry_error) C.ferry_status {
		return C.ferry_descriptor_export(e.handle, buffer, capacity, length, c)
	})
}

func (e *Engine) bytes(op string, f func(unsafe.Pointer, C.size_t, *C.size_t, *C.ferry_error) C.ferry_status) ([]byte, error) {
	if err := e.enter(op); err != nil {
		return nil, err
	}
	defer e.leave()
	c := newCError()
	return bytesOf(
		func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) C.ferry_status {
			return f(buffer, capacity, length, &c)
		},
		func(status C.ferry_status) error { return failure(op, status, &c) })
}

// Stats are counters since the engine was opened, and the current number of objects. ferry.h documents each.
type Stats struct {
	TransfersSubmitted, TransfersDone, TransfersFailed     uint64
	TransfersCancelled, TransfersTimedOut                  uint64
	RequestsIn, SlicesOut                                  uint64
	BytesWritten, BytesRead, BytesApplied, BytesServed     uint64
	RequestsRefused, NotificationsReceived                 uint64
	SessionsUp, SessionsLost, LanesLost, HandshakesRefused uint64
	LateApplies, SendCalls, ReceiveCalls                   uint64
	PeersUp, Regions, Transfers, BytesLocal, BytesDevice   uint64
}

// Stats reads the engine's counters.
func (e *Engine) Stats() (Stats, error) {
	var s C.ferry_stats
	s.struct_size = C.sizeof_ferry_stats
	err := e.call("stats", func(c *C.ferry_error) C.ferry_status { return C.ferry_engine_get_stats(e.handle, &s, c) })
	if err != nil {
		return Stats{}, err
	}
	return Stats{
		uint64(s.transfers_submitted), uint64(s.transfers_done), uint64(s.transfers_failed),
		uint64(s.transfers_cancelled), uint64(s.transfers_timed_out),
		uint64(s.requests_in), uint64(s.slices_out),
		uint64(s.bytes_written), uint64(s.bytes_read), uint64(s.bytes_applied), uint64(s.bytes_served),
		uint64(s.requests_refused), uint64(s.notifications_received),
		uint64(s.sessions_up), uint64(s.sessions_lost), uint64(s.lanes_lost), uint64(s.handshakes_refused),
		uint64(s.late_applies), uint64(s.send_calls), uint64(s.receive_calls),
		uint64(s.peers_up), uint64(s.regions), uint64(s.transfers), uint64(s.bytes_local), uint64(s.bytes_device),
	}, nil
}
