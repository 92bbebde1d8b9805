package ferry

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
)

func TestClosingAnEngineEndsWhatIsInFlight(t *testing.T) {
	s := newSlow(t, Config{"lease_ms": "500"})
	s.stop(t)
	defer s.resume()
	queue, err := s.engine.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	const transfers = 16
	ends := make(chan error, transfers)
	for range transfers {
		go func() {
			_, err := s.peer.Write(context.Background(), s.requests(), overTCP)
			ends <- err
		}()
	}
	next := make(chan error)
	go func() { _, err := queue.Next(context.Background()); next <- err }()
	probe := make(chan error)
	go func() { _, err := s.peer.Probe(context.Background()); probe <- err }()
	for {
		if info, err := s.peer.Info(); err != nil || info.TransfersActive == transfers {
			break
		}
		runtime.Gosched()
	}
	view := s.here
	if err := s.engine.Close(); err != nil {
		t.Fatal(err)
	}
	for range transfers {
		if err := <-ends; err == nil {
			t.Error("a transfer to a process that stands still is done")
		}
	}
	if err := <-next; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := <-probe; err == nil {
		t.Error("a process that stands still gave a sign of life")
	}
	if view.Bytes() != nil {
		t.Error("a view of memory that is gone")
	}
	if err := s.engine.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.engine.Alloc(1, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := s.peer.Write(soon(t), s.requests(), nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if s.engine.Address() != "" {
		t.Error("a closed engine has an address")
	}
}

// Each close does nothing for what is closed, also after its engine is closed.
func TestASecondCloseDoesNothing(t *testing.T) {
	p := newPair(t, 4096, nil)
	queue, err := p.near.Queue(Peers)
	if err != nil {
		t.Fatal(err)
	}
	transfer, err := p.peer.Submit(Write, []Request{p.request(0, 8)}, overTCP)
	if err != nil {
		t.Fatal(err)
	}
	directory, err := p.near.OpenDirectory(soon(t), "static:", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.near.Alloc(4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 3
	for round := range rounds {
		if round == rounds-1 { // p.here goes with its engine
			if err := p.near.Close(); err != nil {
				t.Fatal(err)
			}
			other = p.here
		}
		for _, it := range []interface{ Close() error }{transfer, queue, p.peer, other, directory, (*Engine)(nil)} {
			if err := it.Close(); err != nil {
				t.Errorf("round %d: %T: %v", round, it, err)
			}
		}
	}
	if _, err := p.peer.Info(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestClosingWhileManySubmit(t *testing.T) {
	for range 20 {
		p := newPair(t, 4096, nil)
		var all sync.WaitGroup
		started := make(chan struct{}, 8)
		for g := range 8 {
			together(&all, func() {
				options := []*TransferOptions{nil, overTCP}[g%2]
				started <- struct{}{}
				for {
					if _, err := p.peer.Write(context.Background(), []Request{p.request(g*512, 512)}, options); err != nil {
						if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrCancelled) && !errors.Is(err, ErrPeerLost) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for range 8 {
			<-started
		}
		if err := p.near.Close(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
	}
}
