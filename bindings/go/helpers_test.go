package ferry

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"
)

// A pair is two engines, the first connected to the second, and memory in each.
type pair struct {
	near, far *Engine
	peer      Peer
	here      *Memory
	there     *Memory
}

func newEngine(t testing.TB, config Config) *Engine {
	t.Helper()
	e, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func newPair(t testing.TB, bytes int, config Config) *pair {
	t.Helper()
	p := &pair{near: newEngine(t, config), far: newEngine(t, config)}
	var err error
	if p.here, err = p.near.Alloc(bytes, nil); err != nil {
		t.Fatal(err)
	}
	if p.there, err = p.far.Alloc(bytes, &RegionOptions{Name: "there"}); err != nil {
		t.Fatal(err)
	}
	if p.peer, err = p.near.Connect(soon(t), p.far.Address()); err != nil {
		t.Fatal(err)
	}
	return p
}

// request covers length bytes from the same offset on both sides.
func (p *pair) request(offset, length int) Request {
	return Request{p.here.Address() + uint64(offset), p.there.Address() + uint64(offset), uint64(length), p.there.Region()}
}

// soon returns a context that outlives every test that succeeds.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// fill makes each 8 bytes encode their position; check finds the ones that don't.
func fill(bytes []byte, seed uint64) {
	for i := 0; i+8 <= len(bytes); i += 8 {
		binary.LittleEndian.PutUint64(bytes[i:], seed^uint64(i)*0x9e3779b97f4a7c15)
	}
}

func check(t testing.TB, bytes []byte, seed uint64) {
	t.Helper()
	for i := 0; i+8 <= len(bytes); i += 8 {
		if got, want := binary.LittleEndian.Uint64(bytes[i:]), seed^uint64(i)*0x9e3779b97f4a7c15; got != want {
			t.Fatalf("byte %d: %#x, not %#x", i, got, want)
		}
	}
}

// together runs f on a new goroutine, which the group waits for.
func together(group *sync.WaitGroup, f func()) {
	group.Add(1)
	go func() {
		defer group.Done()
		f()
	}()
}
