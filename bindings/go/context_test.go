package ferry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestNextEndsWithItsContextAndLosesNothing(t *testing.T) {
	p := newPair(t, 64, nil)
	queue, err := p.far.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	const askers = 8
	var all sync.WaitGroup
	for range askers {
		together(&all, func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			if _, err := queue.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got := make(chan string, askers)
	for range askers {
		together(&all, func() {
			event, err := queue.Next(soon(t))
			if err != nil {
				t.Error(err)
			}
			got <- string(event.Data)
		})
	}
	want := map[string]bool{}
	for i := range askers {
		word := fmt.Sprint(i)
		want[word] = true
		if err := p.peer.Notify(soon(t), []byte(word)); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	for range askers {
		delete(want, <-got)
	}
	if len(want) != 0 {
		t.Fatalf("lost: %v", want)
	}
}

func TestAContextThatEndsCancelsTheTransferAndWaitsForIt(t *testing.T) {
	s := newSlow(t, Config{"lease_ms": "1000"})
	s.stop(t)
	defer s.resume()
	ctx, cancel := context.WithCancel(context.Background())
	transfer, err := s.peer.Submit(Write, s.requests(), overTCP)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-transfer.Done():
		t.Fatal("a transfer to a process that stands still is final")
	default:
	}
	cancel()
	result, err := transfer.Wait(ctx)
	if !errors.Is(err, ErrCancelled) || !errors.Is(err, context.Canceled) || result.State != StateCancelled {
		t.Fatal(result, err)
	}
	// A final transfer has released the memory.
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.here.CloseContext(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.peer.Write(ctx, s.requests(), overTCP); !errors.Is(err, ErrNotRegistered) {
		t.Fatal(err)
	}
}

func TestAContextsDeadlineStrikesTheTransfer(t *testing.T) {
	s := newSlow(t, Config{"lease_ms": "1000"})
	s.stop(t)
	defer s.resume()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	result, err := s.peer.Write(ctx, s.requests(), overTCP)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) || result.BytesConfirmed == slowBytes {
		t.Fatal(result, err)
	}
	if _, err := s.peer.Write(ctx, s.requests(), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	options := *overTCP
	options.Deadline = time.Millisecond
	if _, err := s.peer.Write(context.Background(), s.requests(), &options); !errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// A server that accepts connections and never answers.
func TestAContextThatEndsLeavesAConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	e := newEngine(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	defer close(over)
	go func() {
		if silent, err := listener.Accept(); err == nil {
			defer silent.Close()
			cancel()
			// A connection that is closed now would end the attempt before its context does.
			<-over
		}
	}()
	if _, err := e.Connect(ctx, listener.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestAContextThatEndsLeavesAProbeAndANotification(t *testing.T) {
	s := newSlow(t, nil)
	s.stop(t)
	defer s.resume()
	for _, call := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := s.peer.Probe(ctx); return err },
		func(ctx context.Context) error { return s.peer.Notify(ctx, []byte("word")) },
	} {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(10*time.Millisecond, cancel)
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestMemoryInUseIsNotFreed(t *testing.T) {
	s := newSlow(t, nil)
	s.stop(t)
	defer s.resume()
	fill(s.here.Bytes(), 1)
	transfer, err := s.peer.Submit(Write, s.requests(), overTCP)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 80*time.Millisecond)
	defer cancel()
	if err := s.here.CloseContext(ctx); !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	check(t, s.here.Bytes(), 1) // it is still there
	s.resume()
	if _, err := transfer.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.here.CloseContext(soon(t)); err != nil || s.here.Bytes() != nil {
		t.Fatal(err)
	}
}

// Waiting transfers take goroutines, not threads.
func TestWaitingTransfersHoldNoThreads(t *testing.T) {
	s := newSlow(t, Config{"lease_ms": "1000"})
	s.stop(t)
	const transfers = 200
	var all sync.WaitGroup
	for i := range transfers {
		together(&all, func() {
			request := s.requests()[0]
			request.Local += uint64(i) * 4096
			request.Remote += uint64(i) * 4096
			request.Length = 4096
			if _, err := s.peer.Write(soon(t), []Request{request}, overTCP); err != nil {
				t.Error(err)
			}
		})
	}
	for {
		info, err := s.peer.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.TransfersActive == transfers {
			break
		}
		runtime.Gosched()
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) > transfers/2 {
		t.Errorf("%d threads while %d transfers wait", len(tasks), transfers)
	}
	s.resume()
	all.Wait()
}
