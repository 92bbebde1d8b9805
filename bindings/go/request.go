package ferry

// #include <ferry.h>
import "C"

import (
	"time"
	"unsafe"

	"ferry/internal/clock"
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

// A Request is one range of a transfer. ferry reads a slice of Requests in place.
type Request struct {
	// Local is an address in this process, Remote an address in the peer's process.
	Local, Remote uint64
	// Length in bytes; not 0.
	Length uint64
	// RemoteRegion is the peer's region. If that region has been unregistered, the request fails with ErrStale,
	// even if another region is registered there now. 0 means the region that is registered there at that
	// moment.
	RemoteRegion Region
}

// Request must have ferry_request's 32 bytes; an array cannot have a negative length.
var (
	_ [unsafe.Sizeof(Request{}) - C.sizeof_ferry_request]struct{}
	_ [C.sizeof_ferry_request - unsafe.Sizeof(Request{})]struct{}
)

// Flags are the flags of a transfer.
type Flags uint32

const (
	NoCoalesce Flags = C.FERRY_TRANSFER_NO_COALESCE // post each request as it is, in the caller's order
	Ordered    Flags = C.FERRY_TRANSFER_ORDERED     // nothing before the earlier Ordered ones are done
	Checksum   Flags = C.FERRY_TRANSFER_CHECKSUM    // verify the payload end to end
	AckedOnly  Flags = C.FERRY_TRANSFER_ACKED_ONLY  // RDMA: done before the peer's CPU sees it
	Durable    Flags = C.FERRY_TRANSFER_DURABLE     // done when fdatasync has returned for the files written
)

// Transports is a set of transports; 0 allows every transport that the engine may use.
type Transports uint64

// The bits of Transports.
const (
	AllowTCP    Transports = C.FERRY_ALLOW_TCP
	AllowLocal  Transports = C.FERRY_ALLOW_LOCAL
	AllowRDMA   Transports = C.FERRY_ALLOW_RDMA
	AllowCUDA   Transports = C.FERRY_ALLOW_CUDA
	AllowAscend Transports = C.FERRY_ALLOW_ASCEND
)

// TransferOptions are the options of a transfer; nil means all defaults.
type TransferOptions struct {
	Flags Flags
	// Deadline is the time after which a transfer that isn't done is stopped; Forever means never. 0 means the
	// context's deadline in Write and Read, if it has one, and otherwise the setting deadline_ms.
	Deadline time.Duration
	// Notify has bytes that the peer's application gets after the data is visible there. nil means no
	// notification; an empty slice that isn't nil is an empty notification. A Write of no requests sends Notify alone.
	Notify []byte
	// Channel is the channel of Notify, below ChannelsMax; Engine.ChannelQueue takes the notifications of a channel.
	Channel uint32
	// Transports are the allowed transports; if none of them is usable, the transfer fails.
	Transports Transports
	// Priority: among transfers of about the same size, a higher priority goes first.
	Priority uint32
	// StartAfter is the event or stream of a device whose work must be done first; the zero value is none.
	StartAfter StartAfter
	// KeepResults, for Submit and SubmitBlocks, keeps the outcome of each request for Transfer.Results. Without
	// it, the Error has only the failed requests.
	KeepResults bool
}

// State is the final state of a transfer.
type State uint32

// The final states; a transfer reaches exactly one.
const (
	StateDone      State = C.FERRY_STATE_DONE
	StateFailed    State = C.FERRY_STATE_FAILED
	StateCancelled State = C.FERRY_STATE_CANCELLED
	StateTimedOut  State = C.FERRY_STATE_TIMED_OUT
)

// Fence says why the memory is the caller's again.
type Fence uint32

const (
	FenceConfirmed Fence = C.FERRY_FENCE_CONFIRMED // the target said that nothing can land any more
	FenceDead      Fence = C.FERRY_FENCE_DEAD      // the peer's process is known to be gone
	FenceLease     Fence = C.FERRY_FENCE_LEASE     // the target's lease on the data has run out
)

// Notification is the outcome of a transfer's notification.
type Notification uint32

const (
	NotificationNone      Notification = C.FERRY_NOTIFICATION_NONE      // the transfer had none
	NotificationDelivered Notification = C.FERRY_NOTIFICATION_DELIVERED // the peer has it
	NotificationNotSent   Notification = C.FERRY_NOTIFICATION_NOT_SENT  // the peer doesn't have it, and never will
	NotificationUnknown   Notification = C.FERRY_NOTIFICATION_UNKNOWN   // given up, or peer lost, before it was confirmed
)

// A Result is the outcome of a transfer.
type Result struct {
	State          State
	Status         Status
	Fence          Fence
	Notification   Notification
	Transport      Transport
	BytesConfirmed uint64
	RequestsFailed uint64
	// ferry made SlicesOut slices from the RequestsIn submitted requests.
	RequestsIn, SlicesOut uint64
	// On CLOCK_MONOTONIC; the methods convert them, so that a small transfer need not.
	submitted, started, finished uint64
}

// Submitted is when the transfer was submitted.
func (r Result) Submitted() time.Time { return clock.Time(r.submitted) }

// Started is when its first part was posted; the zero Time if nothing was posted.
func (r Result) Started() time.Time { return clock.Time(r.started) }

// Finished is when the transfer was final.
func (r Result) Finished() time.Time { return clock.Time(r.finished) }

// A RequestResult is the outcome of one request of a transfer.
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
		Notification:   Notification(r.notification),
		Transport:      Transport(r.transport),
		BytesConfirmed: uint64(r.bytes_confirmed),
		RequestsFailed: uint64(r.requests_failed),
		RequestsIn:     uint64(r.requests_in),
		SlicesOut:      uint64(r.slices_out),
		submitted:      uint64(r.submitted_ns),
		started:        uint64(r.started_ns),
		finished:       uint64(r.finished_ns),
	}
}
