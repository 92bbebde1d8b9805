package ferry

import (
	"context"
	"ferry/internal/baseline"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// One synchronous WRITE of 64 bytes between two engines of this process.
func BenchmarkWrite64(b *testing.B) {
	p := newPair(b, 4096, nil)
	requests := []Request{p.request(0, 64)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.peer.Write(context.Background(), requests, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// The same WRITE with a context that can end.
func BenchmarkWrite64Cancellable(b *testing.B) {
	p := newPair(b, 4096, nil)
	requests := []Request{p.request(0, 64)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for b.Loop() {
		if _, err := p.peer.Write(ctx, requests, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// The same WRITE while another transfer has a waiter, so that the reactor watches its queue.
func BenchmarkWrite64BesideAWaiter(b *testing.B) {
	p := newPair(b, 4096, nil)
	requests := []Request{p.request(0, 64)}
	p.near.reactor.add(0, make(connect, 1)) // no transfer has the id 0
	defer p.near.reactor.take(0)
	for b.Loop() {
		if _, err := p.peer.Write(context.Background(), requests, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// overC alternates between C and Go, each first in every second round; both return their time, 0 for a
// failure. It reports the medians of both, of their differences and of their ratios, and prints them as the
// benchmarks of the other bindings do.
func overC(b *testing.B, what string, calls float64, inC, inGo func() time.Duration) {
	var c, own, over, ratio []float64
	for b.Loop() {
		var took [2]time.Duration
		for side := range 2 {
			side = (side + len(c)) % 2
			if took[side] = []func() time.Duration{inC, inGo}[side](); took[side] == 0 {
				b.Fatal("a call failed")
			}
		}
		c, own = append(c, float64(took[0])/calls), append(own, float64(took[1])/calls)
		over, ratio = append(over, float64(took[1]-took[0])/calls), append(ratio, float64(took[1])/float64(took[0]))
	}
	median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(over), "ns-over-C")
	fmt.Printf("overhead\t%s\tGo\t%.1f\t%.1f\t%+.1f\t%.3f\n", what, median(c), median(own), median(over), median(ratio))
}

func BenchmarkWrite64OverC(b *testing.B) {
	p := newPair(b, 4096, nil)
	const batch = 2000
	requests := []Request{p.request(0, 64)}
	fill(p.here.Bytes(), 1)
	overC(b, "write", batch, func() time.Duration {
		return baseline.Write(unsafe.Pointer(p.near.handle), p.peer.handle, unsafe.Pointer(&requests[0]), batch)
	}, func() time.Duration {
		begun := time.Now()
		for range batch {
			if _, err := p.peer.Write(context.Background(), requests, nil); err != nil {
				return 0
			}
		}
		return time.Since(begun)
	})
	check(b, p.there.Bytes()[:64], 1)
}

// 100,000 pairs of blocks, every second one at the target, so that none merge. The wait for the end is not
// timed.
func BenchmarkSubmitBlocksOverC(b *testing.B) {
	const pairs, bytes = 100_000, 64
	p := newPair(b, 2*pairs*bytes, nil)
	bases := p.request(0, bytes)
	from, to := make([]int64, pairs), make([]int64, pairs)
	for i := range from {
		from[i], to[i] = int64(i), 2*int64(i)
	}
	fill(p.here.Bytes(), 1)
	overC(b, "submit_blocks", 1, func() time.Duration {
		return baseline.Submission(unsafe.Pointer(p.near.handle), p.peer.handle, unsafe.Pointer(&bases), from, to)
	}, func() time.Duration {
		begun := time.Now()
		transfer, err := p.peer.SubmitBlocks(Write, &Blocks{
			LocalBase: []uint64{bases.Local}, RemoteBase: []uint64{bases.Remote},
			LocalStride: []uint64{bytes}, RemoteStride: []uint64{bytes}, BlockBytes: []uint64{bytes},
			RemoteRegion: []Region{bases.RemoteRegion}, LocalBlocks: IDs(from), RemoteBlocks: IDs(to),
		}, nil)
		if err != nil {
			return 0
		}
		took := time.Since(begun)
		if _, err := transfer.Wait(context.Background()); err != nil {
			return 0
		}
		return took
	})
	for i := range pairs {
		if string(p.there.Bytes()[2*i*bytes:][:bytes]) != string(p.here.Bytes()[i*bytes:][:bytes]) {
			b.Fatalf("block %d is not in its place", i)
		}
	}
}

// Many goroutines, each with one WRITE of 4 KiB at a time, over TCP.
func BenchmarkWrite4KiBGoroutines(b *testing.B) {
	p := newPair(b, 1<<20, nil)
	var next atomic.Int64
	b.SetParallelism(32)
	b.SetBytes(4096)
	b.RunParallel(func(pb *testing.PB) {
		requests := []Request{p.request(int(next.Add(1)-1)%256*4096, 4096)}
		for pb.Next() {
			if _, err := p.peer.Write(context.Background(), requests, &TransferOptions{Transports: AllowTCP}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
