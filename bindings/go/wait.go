package ferry

// #include <ferry.h>
import "C"

import (
	"context"
	"errors"
	"time"
)

// Forever as TransferOptions.Deadline means no deadline.
const Forever time.Duration = 1<<63 - 1

func isDeadline(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// nanoseconds converts a duration to ferry's nanoseconds, in which the largest number means no limit.
func nanoseconds(d time.Duration) C.uint64_t {
	switch {
	case d == Forever:
		return C.FERRY_FOREVER
	case d < 0:
		return 0
	}
	return C.uint64_t(d)
}

// timeoutOf returns the time left until the context's deadline.
func timeoutOf(ctx context.Context) C.uint64_t {
	deadline, ok := ctx.Deadline()
	if !ok {
		return C.FERRY_FOREVER
	}
	return nanoseconds(time.Until(deadline))
}

// over returns why the context has ended, or nil. The context's own timer may fire after its deadline.
func over(ctx context.Context) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if timeoutOf(ctx) == 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// How long a thread stays in a repeatable waiting call before the context is checked.
const turn = 50 * time.Millisecond

// inTurns repeats a call until it returns neither BUSY nor TIMEOUT, or the context ends. It is for calls that
// continue the work of an earlier call.
func inTurns(ctx context.Context, op string, call func(timeout C.uint64_t, c *C.ferry_error) C.ferry_status) error {
	for {
		c := newCError()
		timeout := min(timeoutOf(ctx), C.uint64_t(turn))
		status := call(timeout, &c)
		again := Status(status) == ErrBusy || Status(status) == ErrTimeout
		if !again {
			return failure(op, status, &c)
		}
		if cause := over(ctx); cause != nil {
			err := newError(op, Status(status), &c)
			err.Context = cause
			return err
		}
	}
}

// closing is the error of a close, which has nothing to do if what it closes is gone.
func closing(err error) error {
	if errors.Is(err, ErrStale) || errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// aside makes a call that cannot be interrupted. If the context ends first, aside returns, and the call ends
// by itself in the background, at its timeout at the latest.
func aside(ctx context.Context, op string, call func() error) error {
	if err := ctx.Err(); err != nil {
		return ended(op, err)
	}
	if ctx.Done() == nil {
		return call()
	}
	result := make(chan error, 1)
	go func() { result <- call() }()
	select {
	case err := <-result:
		return because(err, ctx)
	case <-ctx.Done():
		if err, ok := late(ctx, result); ok {
			return because(err, ctx)
		}
		return ended(op, ctx.Err())
	}
}

// How long a call whose deadline has passed waits for ferry's error. Ferry has the same deadline, and its error has the
// reason.
const grace = 100 * time.Millisecond

// late returns what ferry answers shortly after the context's deadline; false if nothing comes, or if the context ended
// otherwise.
func late[T any](ctx context.Context, answers <-chan T) (answer T, ok bool) {
	if !isDeadline(ctx.Err()) {
		return answer, false
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case answer = <-answers:
		return answer, true
	case <-timer.C:
		return answer, false
	}
}

// because adds the context's end to ferry's ErrTimeout error, if the context has ended.
func because(err error, ctx context.Context) error {
	var e *Error
	if errors.As(err, &e) && e.Context == nil && e.Status == ErrTimeout {
		e.Context = over(ctx)
	}
	return err
}
