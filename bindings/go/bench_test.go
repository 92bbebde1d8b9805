package ferry

import (
	"context"
	"ferry/internal/baseline"
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

// The same with a context that can end.
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

// The same while another transfer is waited for, so that the reactor watches its queue.
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

// Go and C by turns; the metric is the median of the differences.
func BenchmarkWrite64OverC(b *testing.B) {
	p := newPair(b, 4096, nil)
	const batch = 2000
	requests := []Request{p.request(0, 64)}
	var over, inC, inGo []float64
	for b.Loop() {
		c := baseline.Write(unsafe.Pointer(p.near.handle), p.peer.handle, unsafe.Pointer(&requests[0]), batch)
		if c == 0 {
			b.Fatal("a WRITE from C failed")
		}
		begun := time.Now()
		for range batch {
			if _, err := p.peer.Write(context.Background(), requests, nil); err != nil {
				b.Fatal(err)
			}
		}
		g := time.Since(begun)
		inC = append(inC, float64(c)/batch)
		inGo = append(inGo, float64(g)/batch)
		over = append(over, float64(g-c)/batch)
	}
	median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(inC), "ns-in-C")
	b.ReportMetric(median(inGo), "ns-in-Go")
	b.ReportMetric(median(over), "ns-over-C")
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

// 100,000 pairs of blocks, neighbours of which merge into 1,000 slices.
func BenchmarkSubmitBlocks(b *testing.B) {
	const pairs = 100_000
	p := newPair(b, pairs*16, nil)
	ids := make([]int32, pairs)
	for i := range ids {
		ids[i] = int32(i)
	}
	blocks := &Blocks{
		LocalBase: []uint64{p.here.Address()}, RemoteBase: []uint64{p.there.Address()},
		LocalStride: []uint64{16}, RemoteStride: []uint64{16}, BlockBytes: []uint64{16},
		RemoteRegion: []Region{p.there.Region()}, LocalBlocks: IDs(ids), RemoteBlocks: IDs(ids),
	}
	for b.Loop() {
		transfer, err := p.peer.SubmitBlocks(Write, blocks, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := transfer.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
