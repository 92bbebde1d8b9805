package ferry

// #include <ferry.h>
import "C"

import (
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

// Its bits.
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
	// StartAfter is a device's event or stream whose work is to be done first; the zero value is none.
	StartAfter StartAfter
	// KeepResults is for Submit and SubmitBlocks: what became of each request is there to be asked for when the
	// transfer is final (Transfer.Results). Without it only of those that failed, in the Error.
	KeepResults bool
}

// State is the kind of a transfer's end.
type State uint32

// The ends; final states are reached once.
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
	NoNotification Delivery = C.FERRY_NOTIFICATION_NONE      // the transfer had none
	Delivered      Delivery = C.FERRY_NOTIFICATION_DELIVERED // the peer has it
	NotSent        Delivery = C.FERRY_NOTIFICATION_NOT_SENT  // the peer doesn't have it, and never will
	Unknown        Delivery = C.FERRY_NOTIFICATION_UNKNOWN   // given up, or the peer lost, before it said so
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
