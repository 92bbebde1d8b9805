package watch

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// newSource is a source over a pipe; raise makes it readable.
func newSource(t *testing.T) (source *Source, raise func()) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	source, err := NewSource(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(fds[0])
	t.Cleanup(func() { syscall.Close(fds[1]) })
	return source, func() {
		if _, err := syscall.Write(fds[1], []byte{1}); err != nil {
			t.Error(err)
		}
	}
}

func nothing() bool { return false }

// A goroutine that waits after one whose deadline has passed sleeps, and does not ask over and over.
func TestADeadlineIsOnlyThatOfItsWaiter(t *testing.T) {
	source, raise := newSource(t)
	defer source.Close()
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := source.Next(soon, nothing); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	var asked atomic.Int64
	var there atomic.Bool
	ended := make(chan error)
	go func() {
		ended <- source.Next(context.Background(), func() bool { asked.Add(1); return there.Load() })
	}()
	select {
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(50 * time.Millisecond): // long enough to ask thousands of times
	}
	there.Store(true)
	raise()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if count := asked.Load(); count > 8 {
		t.Fatalf("it asked %d times", count)
	}
}

func TestClosingEndsEveryWait(t *testing.T) {
	source, _ := newSource(t)
	const waiters = 4
	ended := make(chan error)
	var asked atomic.Int64
	for range waiters {
		go func() { ended <- source.Next(context.Background(), func() bool { asked.Add(1); return false }) }()
	}
	for asked.Load() <= waiters { // all have asked, and one watches
		time.Sleep(time.Millisecond)
	}
	source.Close()
	for range waiters {
		if err := <-ended; err != ErrOver {
			t.Fatal(err)
		}
	}
	if err := source.Next(context.Background(), nothing); err != ErrOver {
		t.Fatal(err)
	}
}

// If the context of a waiter that does not watch ends, that wait alone ends.
func TestAContextEndsItsOwnWait(t *testing.T) {
	source, raise := newSource(t)
	defer source.Close()
	var there atomic.Bool
	watches := make(chan error)
	asked := make(chan struct{}, 16)
	go func() {
		watches <- source.Next(context.Background(), func() bool { asked <- struct{}{}; return there.Load() })
	}()
	<-asked
	<-asked // it watches
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := source.Next(ctx, nothing); err != context.Canceled {
		t.Fatal(err)
	}
	there.Store(true)
	raise()
	if err := <-watches; err != nil {
		t.Fatal(err)
	}
}

func TestADescriptorThatIsNoneIsAnErrno(t *testing.T) {
	if _, err := NewSource(-1); err != syscall.EBADF {
		t.Fatal(err)
	}
}
