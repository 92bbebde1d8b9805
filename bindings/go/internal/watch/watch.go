// Package watch parks goroutines on ferry's eventfds: those of queues, caches and directories.
package watch

import (
	"context"
	"errors"
	"iter"
	"os"
	"syscall"
	"time"

	"ferry/internal/bridge"
)

// A Watch parks a goroutine on an eventfd. It watches a duplicate, so that Go and ferry each close their own. It never
// reads the eventfd: ferry reads it when its events are taken.
type Watch struct {
	file *os.File
	raw  syscall.RawConn
}

// New watches a non-blocking eventfd. An error of the system is a syscall.Errno.
func New(fd int) (*Watch, error) {
	// F_DUPFD_CLOEXEC; the eventfd is non-blocking, so the netpoller takes the duplicate.
	duplicate, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, errno
	}
	w := &Watch{file: os.NewFile(duplicate, "ferry-events")}
	raw, err := w.file.SyscallConn()
	if err != nil {
		w.file.Close()
		return nil, err
	}
	w.raw = raw
	return w, nil
}

// Until calls ready each time the eventfd may have become readable. It returns when ready returns true, or with an
// error when the watch is closed or its deadline passes. Only one goroutine may call it at a time.
func (w *Watch) Until(ready func() bool) error {
	return w.raw.Read(func(uintptr) bool { return ready() })
}

// Close ends Until.
func (w *Watch) Close() { w.file.Close() }

// ErrOver is the error of a source that is closed.
var ErrOver = errors.New("the source is closed")

// A Source lets any number of goroutines wait for the events behind one eventfd.
type Source struct {
	watch *Watch
	turn  chan struct{} // the right to watch
}

// NewSource watches an eventfd, as New does.
func NewSource(fd int) (*Source, error) {
	w, err := New(fd)
	if err != nil {
		return nil, err
	}
	return &Source{watch: w, turn: make(chan struct{}, 1)}, nil
}

// Next calls take, at once and whenever there may be events, until take returns true because it has an event or an
// error. Next returns the context's error if the context ends first, and ErrOver if the source is closed. Except for
// its first call, take runs in one goroutine at a time.
func (s *Source) Next(ctx context.Context, take func() bool) error {
	if take() {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	stop := context.AfterFunc(ctx, func() { s.watch.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		// An earlier context may have left a deadline. The order matters: the end of this context sets a new one.
		s.watch.file.SetReadDeadline(time.Time{})
		if cause := ctx.Err(); cause != nil {
			return cause
		}
		switch waited := s.watch.Until(take); {
		case waited == nil:
			return nil
		case !errors.Is(waited, os.ErrDeadlineExceeded):
			return ErrOver
		}
	}
}

// Close ends every Next: the goroutine that watches returns, and so does each one that gets the turn after it.
func (s *Source) Close() { s.watch.Close() }

// Each has the results of next, one after the other; the last is its first error, or the end of the context.
func Each[T any](ctx context.Context, next func(context.Context) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			var result T
			err := ctx.Err()
			if err != nil {
				err = bridge.Ended("events", err)
			} else {
				result, err = next(ctx)
			}
			if !yield(result, err) || err != nil {
				return
			}
		}
	}
}
