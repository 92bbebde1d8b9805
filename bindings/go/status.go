package ferry

// #include <ferry.h>
import "C"

import (
	"fmt"
	"strings"
	"syscall"
)

// A Status is the outcome of a call or a transfer; it prints as its name, "TIMEOUT". The negative ones are errors:
// compare with errors.Is(err, ferry.ErrTimeout). The numbers are fixed; ferry.h documents each.
type Status int32

// Statuses that are not errors.
const (
	OK       Status = C.FERRY_OK
	Pending  Status = C.FERRY_PENDING
	Draining Status = C.FERRY_DRAINING
)

// The caller made a mistake, or the call is not possible now; the call did nothing. There is one exception: after an
// ErrBusy of a CloseContext whose context ended, the memory, peer or engine stays closed for new work.
const (
	ErrInvalid       Status = C.FERRY_ERR_INVALID
	ErrNotRegistered Status = C.FERRY_ERR_NOT_REGISTERED
	ErrOverlap       Status = C.FERRY_ERR_OVERLAP
	ErrAccess        Status = C.FERRY_ERR_ACCESS
	ErrStale         Status = C.FERRY_ERR_STALE
	ErrBusy          Status = C.FERRY_ERR_BUSY
	ErrLimit         Status = C.FERRY_ERR_LIMIT
	ErrUnsupported   Status = C.FERRY_ERR_UNSUPPORTED
	ErrClosed        Status = C.FERRY_ERR_CLOSED
)

// This transfer or call failed.
const (
	ErrTimeout   Status = C.FERRY_ERR_TIMEOUT
	ErrCancelled Status = C.FERRY_ERR_CANCELLED
	ErrCorrupt   Status = C.FERRY_ERR_CORRUPT
	ErrPartial   Status = C.FERRY_ERR_PARTIAL
)

// The peer failed, or every path to the peer.
const (
	ErrUnreachable Status = C.FERRY_ERR_UNREACHABLE
	ErrPeerLost    Status = C.FERRY_ERR_PEER_LOST
	ErrRefused     Status = C.FERRY_ERR_REFUSED
	ErrVersion     Status = C.FERRY_ERR_VERSION
	ErrNotFerry    Status = C.FERRY_ERR_NOT_FERRY
)

// This engine or machine failed.
const (
	ErrNoMemory    Status = C.FERRY_ERR_NO_MEMORY
	ErrSystem      Status = C.FERRY_ERR_SYSTEM
	ErrUnavailable Status = C.FERRY_ERR_UNAVAILABLE
	ErrPanic       Status = C.FERRY_ERR_PANIC
)

// String returns the name of the status: its C constant without FERRY_ and FERRY_ERR_.
func (s Status) String() string { return C.GoString(C.ferry_status_name(C.ferry_status(s))) }

// Error returns the name too, because package fmt prints errors with Error, even for a Status in a Result.
func (s Status) Error() string { return s.String() }

// An Error says why a call or a transfer failed. It unwraps to its Status, to the errno of the failure, and
// to the error of the context that ended the call: errors.Is finds any of them.
type Error struct {
	// Op is the name of the failed call: "write", "connect", ...
	Op     string
	Status Status
	// Message is a sentence for people.
	Message string
	// RequestIndex is the index of the failed request or range in the caller's list; -1 if the error concerns
	// none.
	RequestIndex int
	// OSError is 0 if no system call failed; VendorError is the code of the device library.
	OSError     syscall.Errno
	VendorError int
	Transport   Transport
	// Result and Requests are set if a transfer took place. Requests has the failed requests, at most
	// RequestErrorsMax; Result.RequestsFailed has their number.
	Result   *Result
	Requests []RequestResult
	// Context is the context's error if the context ended the call.
	Context error
}

// RequestErrorsMax bounds Error.Requests.
const RequestErrorsMax = 65536

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ferry: %s: %s", e.Op, e.Status.String())
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.RequestIndex >= 0 {
		fmt.Fprintf(&b, " (request %d)", e.RequestIndex)
	}
	if e.Context != nil {
		fmt.Fprintf(&b, " (%v)", e.Context)
	}
	return b.String()
}

// Unwrap returns the causes, for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	causes := []error{e.Status}
	if e.OSError != 0 {
		causes = append(causes, e.OSError)
	}
	if e.Context != nil {
		causes = append(causes, e.Context)
	}
	if e.Status != ErrTimeout && isDeadline(e.Context) {
		// Ferry's deadline and the context's are nanoseconds apart, and either may pass first. A call whose
		// work continues
		// in the background answers BUSY.
		causes = append(causes, ErrTimeout)
	}
	return causes
}

// newCError returns the struct that ferry fills when a call fails.
func newCError() C.ferry_error { return C.ferry_error{struct_size: C.sizeof_ferry_error} }

// failure returns nil if the status is not negative.
func failure(op string, status C.ferry_status, c *C.ferry_error) error {
	if status >= 0 {
		return nil
	}
	return newError(op, Status(status), c)
}

func newError(op string, status Status, c *C.ferry_error) *Error {
	e := &Error{Op: op, Status: status, RequestIndex: -1}
	if c != nil && Status(c.status) == status {
		e.Message = C.GoString(&c.message[0])
		e.OSError = syscall.Errno(c.os_error)
		e.VendorError = int(c.vendor_error)
		e.Transport = Transport(c.transport)
		if c.request_index != ^C.uint64_t(0) {
			e.RequestIndex = int(c.request_index)
		}
	}
	return e
}

func invalid(op, format string, arguments ...any) *Error {
	return &Error{Op: op, Status: ErrInvalid, Message: fmt.Sprintf(format, arguments...), RequestIndex: -1}
}

func closedError(op string) *Error {
	return &Error{Op: op, Status: ErrClosed, Message: "the engine is closed", RequestIndex: -1}
}

// ended returns the error of a call that its context ended.
func ended(op string, cause error) *Error {
	status := ErrCancelled
	if isDeadline(cause) {
		status = ErrTimeout
	}
	return &Error{Op: op, Status: status, RequestIndex: -1, Context: cause}
}
