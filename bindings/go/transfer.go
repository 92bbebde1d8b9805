package ferry

// #cgo noescape ferry_go_submit
// #cgo nocallback ferry_go_submit
// #cgo noescape ferry_go_look
// #cgo nocallback ferry_go_look
// #cgo noescape ferry_transfer_try
// #cgo nocallback ferry_transfer_try
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

// A Transfer is a submitted transfer. It needs no Close: it is freed at its end, whether anyone waits or not.
type Transfer struct {
	engine *Engine
	op     Op
	handle C.ferry_transfer
	id     uint64
	keep   bool
	mu     sync.Mutex // held while the end is checked
	ended  atomic.Bool
	done   chan struct{}
	// The last known progress; protected by mu.
	progress Progress
	// Valid once done is closed.
	result  Result
	results []RequestResult
	err     *Error
}

// Progress is the progress of a transfer. BytesConfirmed are confirmed to be at their destination; the number
// never decreases, never exceeds BytesTotal, and equals the Result's once the transfer is final.
type Progress struct{ BytesConfirmed, BytesTotal uint64 }

// How long the submitter of a small transfer polls, and the size of a small transfer. At most GOMAXPROCS goroutines
// poll at a time, because more would occupy threads in vain.
const (
	look      = 20 * time.Microsecond
	lookBytes = 64 << 10
)

var looking atomic.Int32

// Submit starts a transfer of all requests, and returns at once. If it fails, it has done nothing. The memory
// that the requests name belongs to the transfer until it is final, whether anyone waits for it or not.
func (p Peer) Submit(op Op, requests []Request, options *TransferOptions) (*Transfer, error) {
	t, _, err := p.submit(op, requests, options, 0, 0)
	return t, err
}

// Write copies local memory to the peer, and returns when the transfer is final. An *Error with a Result is
// the transfer's own error; other errors are the call's.
func (p Peer) Write(ctx context.Context, requests []Request, options *TransferOptions) (Result, error) {
	return p.transfer(ctx, Write, requests, options)
}

// Read copies the peer's memory into local memory. It behaves as Write otherwise.
func (p Peer) Read(ctx context.Context, requests []Request, options *TransferOptions) (Result, error) {
	return p.transfer(ctx, Read, requests, options)
}

func (p Peer) transfer(ctx context.Context, op Op, requests []Request, options *TransferOptions) (Result, error) {
	if cause := over(ctx); cause != nil {
		return Result{}, ended(op.String(), cause)
	}
	var deadline C.uint64_t
	bounded := false
	if at, ok := ctx.Deadline(); ok {
		// ferry itself enforces the deadline, so that the transfer ends in time even if nobody waits.
		deadline = max(nanoseconds(time.Until(at)), 1)
		bounded = options == nil || options.Deadline == 0 || nanoseconds(options.Deadline) >= deadline
	}
	if !bounded {
		deadline = 0
	}
	var patience C.uint64_t
	if len(requests) == 1 && requests[0].Length <= lookBytes {
		if result, done := p.try(op, requests, options); done {
			return result, nil
		}
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

// try completes a small transfer with a peer on this host by one copy in this thread, without a handle, an event or a
// wait. It returns false if that is not possible; the caller then submits the transfer, which also reports wrong
// arguments.
func (p Peer) try(op Op, requests []Request, options *TransferOptions) (Result, bool) {
	e := p.engine
	if e == nil || !options.atOnce() || e.enter(op.String()) != nil {
		return Result{}, false
	}
	defer e.leave()
	var full *C.ferry_transfer_options
	if options != nil {
		full = &C.ferry_transfer_options{
			struct_size:        C.sizeof_ferry_transfer_options,
			flags:              C.uint32_t(options.Flags),
			transports_allowed: C.uint64_t(options.Transports),
		}
	}
	result := C.ferry_result{struct_size: C.sizeof_ferry_result}
	status := C.ferry_transfer_try(e.handle, C.ferry_peer(p.handle), C.uint32_t(op),
		(*C.ferry_request)(unsafe.Pointer(unsafe.SliceData(requests))), C.size_t(len(requests)), full, &result, nil)
	if status != C.FERRY_OK {
		return Result{}, false
	}
	return newResult(&result), true
}

// submit starts a transfer. With patience it polls that long for the end; if the transfer is done by then,
// the returned transfer is nil. A deadline that isn't 0 replaces the deadline of the options.
func (p Peer) submit(op Op, requests []Request, options *TransferOptions, deadline, patience C.uint64_t) (*Transfer, Result, error) {
	e := p.engine
	if e == nil {
		return nil, Result{}, invalid(op.String(), "the peer is the zero Peer; Engine.Connect returns one")
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
	// A caller that waits here gets no Transfer to ask for the outcome of each request.
	keep := options.keep() && patience == 0
	status := C.ferry_go_submit(e.handle, C.ferry_peer(p.handle), C.uint32_t(op),
		(*C.ferry_request)(unsafe.Pointer(unsafe.SliceData(requests))), C.size_t(len(requests)),
		&full, notify, notifyLength, wait, keep, &handle, &result, &looked, &c)
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
	t := &Transfer{engine: e, op: op, handle: handle, id: id, keep: bool(keep), done: make(chan struct{})}
	if looked == C.FERRY_OK || looked < 0 {
		r.leftBehind()
		final, failed := result, c
		t.end(looked, &final, &failed)
		return t, Result{}, nil
	}
	t.expect()
	return t, Result{}, nil
}

// options converts the options for the shim.
func (r *reactor) options(options *TransferOptions, id uint64, deadline C.uint64_t) (C.ferry_go_options, unsafe.Pointer, C.size_t) {
	full := C.ferry_go_options{queue: r.queue, user_data: C.uint64_t(id), deadline_ns: deadline}
	if options == nil {
		return full, nil, 0
	}
	full.flags = C.uint32_t(options.Flags)
	full.priority = C.uint32_t(options.Priority)
	full.channel = C.uint32_t(options.Channel)
	full.transports_allowed = C.uint64_t(options.Transports)
	full.event_kind, full.event = C.uint32_t(options.StartAfter.kind), C.uint64_t(options.StartAfter.handle)
	if deadline == 0 && options.Deadline != 0 {
		// 0 would mean the setting, and a time in the past must not mean it.
		full.deadline_ns = max(nanoseconds(options.Deadline), 1)
	}
	return full, unsafe.Pointer(unsafe.SliceData(options.Notify)), C.size_t(len(options.Notify))
}

// atOnce returns true if the transfer needs only the copy. A Channel without Notify is an error that try does not see.
func (o *TransferOptions) atOnce() bool {
	return o == nil || (o.Notify == nil && o.Channel == 0 && o.StartAfter == StartAfter{})
}

func (o *TransferOptions) keep() C.bool { return C.bool(o != nil && o.KeepResults) }

// expect registers the transfer for its event, and ends it if the event has come already.
func (t *Transfer) expect() {
	r := t.engine.reactor
	r.add(t.id, t)
	t.settle(nil)
	if t.ended.Load() && r.take(t.id) != nil {
		r.leftBehind()
	}
}

// complete ends the transfer; the reactor calls it with the transfer's event.
func (t *Transfer) complete(event *C.ferry_event) { t.settle(event) }

// settle checks whether the transfer is final, and ends it if so. With an event, the transfer is final. The check frees
// a transfer that is done, so only one check may find it done.
func (t *Transfer) settle(event *C.ferry_event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Load() {
		return
	}
	var result C.ferry_result
	var c C.ferry_error
	status := C.ferry_go_look(t.engine.handle, t.handle, C.bool(t.keep), &result, &c)
	if event != nil && result.state == 0 {
		// The engine was closed in between; only the event is left.
		status = event.status
	}
	if status <= 0 {
		t.end(status, &result, &c)
	}
}

// end stores the outcome of the transfer, and frees it.
func (t *Transfer) end(status C.ferry_status, result *C.ferry_result, c *C.ferry_error) {
	final := result.state != 0
	if final {
		t.result = newResult(result)
		t.progress = Progress{t.result.BytesConfirmed, t.result.BytesConfirmed}
	}
	if status < 0 {
		t.err = newError(t.op.String(), Status(status), c)
		if final {
			t.look()
			t.err.Result = &t.result
			t.err.Requests = t.requestResults(C.FERRY_RESULTS_FAILED, min(t.result.RequestsFailed, RequestErrorsMax))
		}
	}
	if final && t.keep {
		t.results = t.requestResults(C.FERRY_RESULTS_ALL, t.result.RequestsIn)
	}
	if status < 0 || t.keep {
		C.ferry_transfer_release(t.engine.handle, t.handle, nil)
	}
	t.ended.Store(true)
	close(t.done)
}

// look reads the progress of the transfer; for a freed transfer it keeps the last known progress.
func (t *Transfer) look() {
	var confirmed, total C.uint64_t
	if C.ferry_transfer_progress(t.engine.handle, t.handle, &confirmed, &total, nil) == C.FERRY_OK {
		t.progress = Progress{uint64(confirmed), uint64(total)}
	}
}

func (t *Transfer) requestResults(which C.uint32_t, most uint64) []RequestResult {
	list := make([]C.ferry_request_result, most)
	if len(list) == 0 {
		return nil
	}
	var count C.size_t
	status := C.ferry_transfer_results(t.engine.handle, t.handle, which, &list[0],
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

// Done returns a channel that is closed when the transfer is final.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Progress returns the progress of the transfer, at any time and without waiting.
func (t *Transfer) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended.Load() && t.engine.enter("progress") == nil {
		defer t.engine.leave()
		t.look()
	}
	return t.progress
}

// Results returns the outcome of each request, in the caller's order, once the transfer is final. It returns
// nil unless the transfer was submitted with TransferOptions.KeepResults.
func (t *Transfer) Results() []RequestResult {
	select {
	case <-t.done:
		return t.results
	default:
		return nil
	}
}

// Cancel cancels the transfer, and does not wait; the final state has the outcome.
func (t *Transfer) Cancel() {
	if t.ended.Load() || t.engine.enter("cancel") != nil {
		return
	}
	defer t.engine.leave()
	C.ferry_transfer_cancel(t.engine.handle, t.handle, nil)
}

// WaitAll returns when every transfer is final. It returns the error of the first transfer in the list that is not
// done. It behaves as Transfer.Wait otherwise: if the context ends first, all transfers are cancelled.
func WaitAll(ctx context.Context, transfers ...*Transfer) error {
	var first error
	for _, t := range transfers {
		if _, err := t.Wait(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Wait returns when the transfer is final, however it ended. If the context ends first, Wait cancels the
// transfer and still waits until it is final; if the transfer is done by then, there is no error. Any number
// of goroutines may wait.
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

// Close cancels a transfer that is not final, and waits until it is final.
func (t *Transfer) Close() error {
	t.Cancel()
	<-t.done
	return nil
}
