package ferry

// #cgo noescape ferry_go_submit
// #cgo nocallback ferry_go_submit
// #cgo noescape ferry_go_look
// #cgo nocallback ferry_go_look
// #include "shim.h"
import "C"

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Op is the direction of a transfer.
type Op uint32

const (
	Read  Op = C.FERRY_OP_READ  // from the peer's memory into local memory
	Write Op = C.FERRY_OP_WRITE // from local memory into the peer's memory
)

func (op Op) String() string {
	switch op {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return "transfer"
}

// A Request is one range of a transfer. A slice of them crosses into ferry as it is.
type Request struct {
	// Local is an address in this process, Remote one as the peer knows it.
	Local, Remote uint64
	// Length in bytes; not 0.
	Length uint64
	// RemoteRegion is the peer's region that is meant: if it has been unregistered, the request fails with
	// ErrStale whatever is there now. 0 is whatever is registered there at that moment.
	RemoteRegion Region
}

// Both must be ferry_request's 32 bytes; an array cannot have a negative length.
var (
	_ [unsafe.Sizeof(Request{}) - C.sizeof_ferry_request]struct{}
	_ [C.sizeof_ferry_request - unsafe.Sizeof(Request{})]struct{}
)

// Flags of a transfer.
type Flags uint32

const (
	NoCoalesce Flags = C.FERRY_TRANSFER_NO_COALESCE // post each request as it is, in the caller's order
	Ordered    Flags = C.FERRY_TRANSFER_ORDERED     // nothing before the earlier Ordered ones are done
	Checksum   Flags = C.FERRY_TRANSFER_CHECKSUM    // verify the payload end to end
	AckedOnly  Flags = C.FERRY_TRANSFER_ACKED_ONLY  // RDMA: done before the peer's CPU sees it
)

// Transports is a set of transports; 0 is all that the engine may use.
type Transports uint64

const (
	AllowTCP    Transports = C.FERRY_ALLOW_TCP
	AllowLocal  Transports = C.FERRY_ALLOW_LOCAL
	AllowRDMA   Transports = C.FERRY_ALLOW_RDMA
	AllowCUDA   Transports = C.FERRY_ALLOW_CUDA
	AllowAscend Transports = C.FERRY_ALLOW_ASCEND
)

// TransferOptions of a transfer; nil is all defaults.
type TransferOptions struct {
	Flags Flags
	// Deadline is when the transfer is struck if it isn't done; 0 the setting deadline_ms, or the context's
	// where the transfer is waited for at once. Forever is never.
	Deadline time.Duration
	// Notify is delivered to the peer's application after the data is visible there. nil is none; an empty
	// slice that isn't nil is an empty notification.
	Notify []byte
	// Transports that are allowed: with none of them usable the transfer fails.
	Transports Transports
	// Priority: higher goes first among transfers of about the same size.
	Priority uint32
}

// State is the kind of a transfer's end.
type State uint32

const (
	Done      State = C.FERRY_STATE_DONE
	Failed    State = C.FERRY_STATE_FAILED
	Cancelled State = C.FERRY_STATE_CANCELLED
	TimedOut  State = C.FERRY_STATE_TIMED_OUT
)

// Fence says why the memory is the caller's again.
type Fence uint32

const (
	Confirmed Fence = C.FERRY_FENCE_CONFIRMED // the target said that nothing can land any more
	Dead      Fence = C.FERRY_FENCE_DEAD      // the peer's process is known to be gone
	Lease     Fence = C.FERRY_FENCE_LEASE     // the target's lease on the data has run out
)

// Delivery is what became of a transfer's notification.
type Delivery uint32

const (
	NoNotification Delivery = C.FERRY_NOTIFICATION_NONE
	Delivered      Delivery = C.FERRY_NOTIFICATION_DELIVERED
	NotSent        Delivery = C.FERRY_NOTIFICATION_NOT_SENT
	Unknown        Delivery = C.FERRY_NOTIFICATION_UNKNOWN
)

// A Result is how a transfer ended.
type Result struct {
	State          State
	Status         Status
	Fence          Fence
	Notification   Delivery
	Transport      Transport
	BytesConfirmed uint64
	RequestsFailed uint64
	// RequestsIn were submitted, and became SlicesOut slices.
	RequestsIn, SlicesOut uint64
	// Submitted, Started and Finished are CLOCK_MONOTONIC, in nanoseconds; Started is 0 if nothing was posted.
	Submitted, Started, Finished uint64
}

// A RequestResult is how one request of a transfer ended.
type RequestResult struct {
	// Index in the caller's list; for blocks, layer * pairs + pair.
	Index          uint64
	Status         Status
	BytesConfirmed uint64
	OSError        int
	VendorError    int
	Transport      Transport
}

// A Transfer is one that was submitted. It needs no closing: its end frees it, waited for or not.
type Transfer struct {
	engine *Engine
	op     Op
	handle C.ferry_transfer
	id     uint64
	mu     sync.Mutex // held while its end is looked for
	ended  atomic.Bool
	done   chan struct{}
	// Good once done is closed.
	result Result
	err    *Error
}

// How long a small transfer is looked at from where it was submitted, and what is small. Only as many
// goroutines look at a time as can run: the others would take threads for nothing.
const (
	look      = 20 * time.Microsecond
	lookBytes = 64 << 10
)

var looking atomic.Int32

// Submit starts a transfer of all requests, and returns at once. When it fails, nothing was done. The memory
// that the requests name belongs to the transfer until it is final, whether it is waited for or not.
func (p Peer) Submit(op Op, requests []Request, options *TransferOptions) (*Transfer, error) {
	t, _, err := p.submit(op, requests, options, 0, 0)
	return t, err
}

// Write copies local memory to the peer, and returns when the transfer is final. An error that is an *Error
// with a Result is the transfer's own.
func (p Peer) Write(ctx context.Context, requests []Request, options *TransferOptions) (Result, error) {
	return p.transfer(ctx, Write, requests, options)
}

// Read copies the peer's memory here; otherwise as Write.
func (p Peer) Read(ctx context.Context, requests []Request, options *TransferOptions) (Result, error) {
	return p.transfer(ctx, Read, requests, options)
}

func (p Peer) transfer(ctx context.Context, op Op, requests []Request, options *TransferOptions) (Result, error) {
	if cause := ctx.Err(); cause != nil {
		return Result{}, ended(op.String(), cause)
	}
	var deadline C.uint64_t
	bounded := false
	if at, ok := ctx.Deadline(); ok {
		// Struck by ferry itself, so that a transfer that waits for nobody ends in time, too.
		deadline = max(nanoseconds(time.Until(at)), 1)
		bounded = options == nil || options.Deadline == 0 || nanoseconds(options.Deadline) >= deadline
	}
	if !bounded {
		deadline = 0
	}
	var patience C.uint64_t
	if len(requests) == 1 && requests[0].Length <= lookBytes {
		patience = C.uint64_t(look)
	}
	t, result, err := p.submit(op, requests, options, deadline, patience)
	if err == nil && t != nil {
		result, err = t.Wait(ctx)
	}
	if failed, ok := err.(*Error); ok && bounded && failed.Status == ErrTimeout && failed.Context == nil {
		with := *failed
		with.Context = context.DeadlineExceeded
		err = &with
	}
	return result, err
}

// submit starts a transfer. With patience it looks for the end that long: the transfer returned is then nil
// if it was done by the time. A deadline that isn't 0 takes the place of the options'.
func (p Peer) submit(op Op, requests []Request, options *TransferOptions, deadline, patience C.uint64_t) (*Transfer, Result, error) {
	e := p.engine
	if e == nil {
		return nil, Result{}, invalid(op.String(), "peer: it is the zero Peer")
	}
	if err := e.enter(op.String()); err != nil {
		return nil, Result{}, err
	}
	defer e.leave()
	r := e.reactor
	id := r.ids.Add(1)
	full, notify, notifyLength := r.options(options, id, deadline)
	wait := patience
	if wait > 0 && int(looking.Add(1)) > runtime.GOMAXPROCS(0) {
		wait = 0
	}
	var (
		handle C.ferry_transfer
		result C.ferry_result
		looked C.ferry_status
		c      C.ferry_error
	)
	status := C.ferry_go_submit(e.handle, C.ferry_peer(p.handle), C.uint32_t(op),
		(*C.ferry_request)(unsafe.Pointer(unsafe.SliceData(requests))), C.size_t(len(requests)),
		&full, notify, notifyLength, wait, &handle, &result, &looked, &c)
	if patience > 0 {
		looking.Add(-1)
	}
	if status < 0 {
		failed := c // so that c itself stays on the stack
		return nil, Result{}, newError(op.String(), Status(status), &failed)
	}
	if patience > 0 && looked == C.FERRY_OK {
		r.leftBehind()
		return nil, newResult(&result), nil
	}
	t := &Transfer{engine: e, op: op, handle: handle, id: id, done: make(chan struct{})}
	if looked == C.FERRY_OK || looked < 0 {
		r.leftBehind()
		r, failed := result, c
		t.end(looked, &r, &failed)
		return t, Result{}, nil
	}
	t.expect()
	return t, Result{}, nil
}

// options turns them into what the shim takes.
func (r *reactor) options(options *TransferOptions, id uint64, deadline C.uint64_t) (C.ferry_go_options, unsafe.Pointer, C.size_t) {
	full := C.ferry_go_options{queue: r.queue, user_data: C.uint64_t(id), deadline_ns: deadline}
	if options == nil {
		return full, nil, 0
	}
	full.flags = C.uint32_t(options.Flags)
	full.priority = C.uint32_t(options.Priority)
	full.transports_allowed = C.uint64_t(options.Transports)
	if deadline == 0 && options.Deadline != 0 {
		// 0 would be the setting, which isn't what a time in the past means.
		full.deadline_ns = max(nanoseconds(options.Deadline), 1)
	}
	return full, unsafe.Pointer(unsafe.SliceData(options.Notify)), C.size_t(len(options.Notify))
}

// expect has the transfer's event end it, and ends it if that has come already.
func (t *Transfer) expect() {
	r := t.engine.reactor
	r.add(t.id, t)
	t.settle(nil)
	if t.ended.Load() && r.take(t.id) != nil {
		r.leftBehind()
	}
}

// complete is for the reactor: the transfer's event has come.
func (t *Transfer) complete(event *C.ferry_event) { t.settle(event) }

// settle looks whether the transfer is final, and ends it if it is; with an event, it is. The look frees a
// transfer that is done: so only one may find that out.
func (t *Transfer) settle(event *C.ferry_event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() {
		return
	}
	var result C.ferry_result
	var c C.ferry_error
	status := C.ferry_go_look(t.engine.handle, t.handle, &result, &c)
	if event != nil && result.state == 0 {
		// The engine was closed in between: the event is all there is.
		status = event.status
	}
	if status <= 0 {
		t.end(status, &result, &c)
	}
}

// end takes in how the transfer ended, and frees it.
func (t *Transfer) end(status C.ferry_status, result *C.ferry_result, c *C.ferry_error) {
	if result.state != 0 {
		t.result = newResult(result)
	}
	if status < 0 {
		t.err = newError(t.op.String(), Status(status), c)
		if result.state != 0 {
			t.err.Result = &t.result
			t.err.Requests = t.failedRequests()
		}
		C.ferry_transfer_release(t.engine.handle, t.handle, nil)
	}
	t.ended.Store(true)
	close(t.done)
}

func (t *Transfer) failedRequests() []RequestResult {
	list := make([]C.ferry_request_result, min(t.result.RequestsFailed, RequestErrorsMax))
	if len(list) == 0 {
		return nil
	}
	var count C.size_t
	status := C.ferry_transfer_results(t.engine.handle, t.handle, C.FERRY_RESULTS_FAILED, &list[0],
		C.sizeof_ferry_request_result, C.size_t(len(list)), &count, nil)
	if status != C.FERRY_OK {
		return nil
	}
	results := make([]RequestResult, min(int(count), len(list)))
	for i := range results {
		r := &list[i]
		results[i] = RequestResult{uint64(r.request_index), Status(r.status), uint64(r.bytes_confirmed),
			int(r.os_error), int(r.vendor_error), Transport(r.transport)}
	}
	return results
}

// Done is closed when the transfer is final.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Cancel asks the transfer to stop, and does not wait: what came of it, its end tells.
func (t *Transfer) Cancel() {
	if t.ended.Load() || t.engine.enter("cancel") != nil {
		return
	}
	defer t.engine.leave()
	C.ferry_transfer_cancel(t.engine.handle, t.handle, nil)
}

// Wait returns when the transfer is final, however it ended. When the context ends first it cancels the
// transfer and goes on waiting until it is final; one that is done by then is no error. Any number of
// goroutines may wait.
func (t *Transfer) Wait(ctx context.Context) (Result, error) {
	var cause error
	select {
	case <-t.done:
	default:
		select {
		case <-t.done:
		case <-ctx.Done():
			cause = ctx.Err()
			t.Cancel()
			<-t.done
		}
	}
	if t.err == nil {
		return t.result, nil
	}
	if cause == nil {
		return t.result, t.err
	}
	err := *t.err
	err.Context = cause
	return t.result, &err
}

// Close cancels a transfer that is not final, and waits until it is.
func (t *Transfer) Close() error {
	t.Cancel()
	<-t.done
	return nil
}

func newResult(r *C.ferry_result) Result {
	return Result{
		State:          State(r.state),
		Status:         Status(r.status),
		Fence:          Fence(r.fence),
		Notification:   Delivery(r.notification),
		Transport:      Transport(r.transport),
		BytesConfirmed: uint64(r.bytes_confirmed),
		RequestsFailed: uint64(r.requests_failed),
		RequestsIn:     uint64(r.requests_in),
		SlicesOut:      uint64(r.slices_out),
		Submitted:      uint64(r.submitted_ns),
		Started:        uint64(r.started_ns),
		Finished:       uint64(r.finished_ns),
	}
}
