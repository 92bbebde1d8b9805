package ferry

import (
	"errors"
	"slices"
	"testing"
)

// A transfer that is slow enough to be seen in the middle.
func TestProgressShowsHowFarATransferIs(t *testing.T) {
	const length, rounds = 4 << 20, 4096
	for _, transports := range []Transports{AllowTCP, AllowLocal} {
		for _, op := range []Op{Write, Read} {
			p := newPair(t, length, nil)
			requests := slices.Repeat([]Request{p.request(0, length)}, rounds)
			transfer, err := p.peer.Submit(op, requests, &TransferOptions{Transports: transports, Flags: NoCoalesce})
			if err != nil {
				t.Fatal(err)
			}
			var last uint64
			look := func() (moved bool) {
				at := transfer.Progress()
				if at.BytesTotal != length*rounds || at.BytesConfirmed < last || at.BytesConfirmed >= at.BytesTotal {
					t.Fatalf("%+v after %d", at, last)
				}
				moved, last = at.BytesConfirmed > last, at.BytesConfirmed
				return moved
			}
			for steps := 0; steps < 3; {
				if look() {
					steps++
				}
			}
			transfer.Cancel()
			result, err := transfer.Wait(soon(t))
			if !errors.Is(err, ErrCancelled) {
				t.Fatal(result, err)
			}
			look()
			if last != result.BytesConfirmed {
				t.Fatalf("%d, not %d", last, result.BytesConfirmed)
			}
		}
	}
}

func TestProgressStandsStillWithThePeerAndEndsWhole(t *testing.T) {
	s := newSlow(t, nil)
	s.stop(t)
	defer s.resume()
	transfer, err := s.peer.Submit(Write, s.requests(), overTCP)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if at := transfer.Progress(); at != (Progress{0, slowBytes}) {
			t.Fatalf("%+v", at)
		}
	}
	s.resume()
	if _, err := transfer.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	if at := transfer.Progress(); at != (Progress{slowBytes, slowBytes}) {
		t.Fatalf("%+v", at)
	}
}

func TestProgressOutlivesTheEngine(t *testing.T) {
	p := newPair(t, 4096, nil)
	transfer, err := p.peer.Submit(Write, []Request{p.request(0, 4096)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transfer.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.near.Close(); err != nil {
		t.Fatal(err)
	}
	if at := transfer.Progress(); at != (Progress{4096, 4096}) {
		t.Fatalf("%+v", at)
	}
}
