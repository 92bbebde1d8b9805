package ferry

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

var (
	_ io.Closer = (*Engine)(nil)
	_ io.Closer = (*Memory)(nil)
	_ io.Closer = (*Queue)(nil)
	_ io.Closer = (*Transfer)(nil)
	_ io.Closer = Peer{}
)

func TestWriteAndReadMoveEachByteToItsPlace(t *testing.T) {
	const bytes = 1 << 20
	p := newPair(t, 2*bytes, nil)
	for _, transports := range []Transports{0, AllowTCP, AllowLocal} {
		for _, length := range []int{8, 64, 4096, 65536, 65544, bytes} {
			seed := uint64(length) + uint64(transports)<<32
			options := &TransferOptions{Transports: transports}
			fill(p.here.Bytes()[:length], seed)
			result, err := p.peer.Write(soon(t), []Request{p.request(0, length)}, options)
			if err != nil {
				t.Fatal(err)
			}
			if result.State != StateDone || result.Status != OK || result.BytesConfirmed != uint64(length) || result.RequestsIn != 1 {
				t.Fatalf("%+v", result)
			}
			check(t, p.there.Bytes()[:length], seed)
			back := p.request(0, length)
			back.Local += bytes
			if _, err := p.peer.Read(soon(t), []Request{back}, options); err != nil {
				t.Fatal(err)
			}
			check(t, p.here.Bytes()[bytes:bytes+length], seed)
		}
	}
}

// The times of a result lie between Go's before and after it; the two clocks are read less than a millisecond apart.
func TestAResultHasTimesOfGo(t *testing.T) {
	p := newPair(t, 64, nil)
	times := []time.Time{time.Now().Add(-time.Millisecond)}
	result, err := p.peer.Write(soon(t), []Request{p.request(0, 64)}, overTCP)
	if err != nil {
		t.Fatal(err)
	}
	times = append(times, result.Submitted(), result.Started(), result.Finished(), time.Now().Add(time.Millisecond))
	if !slices.IsSortedFunc(times, time.Time.Compare) {
		t.Error(times)
	}
	if !(Result{}).Started().IsZero() {
		t.Error("what was never posted has a time")
	}
}

// A small transfer on this host is neither submitted nor seen by the reactor.
func TestASmallTransferOnThisHostIsNotSubmitted(t *testing.T) {
	p := newPair(t, 65536, nil)
	fill(p.here.Bytes(), 3)
	for _, options := range []*TransferOptions{nil, {Transports: AllowLocal}} {
		for _, call := range []func(context.Context, []Request, *TransferOptions) (Result, error){p.peer.Write, p.peer.Read} {
			result, err := call(soon(t), []Request{p.request(0, 65536)}, options)
			if err != nil || result.State != StateDone || result.BytesConfirmed != 65536 || result.Transport != TransportLocal {
				t.Fatalf("%+v %v", result, err)
			}
		}
	}
	check(t, p.there.Bytes(), 3)
	if submitted := p.near.reactor.ids.Load(); submitted != 0 {
		t.Errorf("%d were submitted", submitted)
	}
	// These transfers can't be completed at once.
	for _, options := range []*TransferOptions{overTCP, {Notify: []byte{}}, {Flags: Ordered}, {Flags: Checksum}} {
		before := p.near.reactor.ids.Load()
		if _, err := p.peer.Write(soon(t), []Request{p.request(0, 64)}, options); err != nil {
			t.Fatal(err)
		}
		if p.near.reactor.ids.Load() != before+1 {
			t.Errorf("%+v was not submitted", options)
		}
	}
}

func TestManyRequestsOfOneTransfer(t *testing.T) {
	const blocks, size = 512, 512
	p := newPair(t, blocks*size, nil)
	fill(p.here.Bytes(), 7)
	requests := make([]Request, blocks)
	for i := range requests {
		// Block i goes to the place of block n-1-i.
		requests[i] = p.request(i*size, size)
		requests[i].Remote = p.there.Address() + uint64((blocks-1-i)*size)
	}
	transfer, err := p.peer.Submit(Write, requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	if result, err := transfer.Wait(soon(t)); err != nil || result.RequestsIn != blocks || result.SlicesOut != blocks {
		t.Fatal(result, err)
	}
	// Reverse them to compare by place.
	turned := make([]byte, blocks*size)
	for i := range blocks {
		copy(turned[i*size:], p.there.Bytes()[(blocks-1-i)*size:(blocks-i)*size])
	}
	check(t, turned, 7)
}

func TestBlocksMergeNeighbours(t *testing.T) {
	const size, layers = 4096, 3
	p := newPair(t, layers*16*size, nil)
	fill(p.here.Bytes(), 9)
	blocks := &Blocks{LocalBlocks: IDs([]int64{5, 6, 7, 12, 13}), RemoteBlocks: IDs([]int64{2, 3, 4, 8, 9})}
	for layer := range layers {
		base := uint64(layer * 16 * size)
		blocks.LocalBase = append(blocks.LocalBase, p.here.Address()+base)
		blocks.RemoteBase = append(blocks.RemoteBase, p.there.Address()+base)
		blocks.LocalStride = append(blocks.LocalStride, size)
		blocks.RemoteStride = append(blocks.RemoteStride, size)
		blocks.BlockBytes = append(blocks.BlockBytes, size)
		blocks.RemoteRegion = append(blocks.RemoteRegion, p.there.Region())
	}
	transfer, err := p.peer.SubmitBlocks(Write, blocks, &TransferOptions{Notify: []byte("blocks")})
	if err != nil {
		t.Fatal(err)
	}
	result, err := transfer.Wait(soon(t))
	if err != nil || result.SlicesOut != 2*layers || result.RequestsIn != 5*layers || result.Notification != NotificationDelivered {
		t.Fatalf("%+v %v", result, err)
	}
	for layer := range layers {
		for i, local := range []int{5, 6, 7, 12, 13} {
			remote := []int{2, 3, 4, 8, 9}[i]
			got := p.there.Bytes()[(layer*16+remote)*size:][:size]
			want := p.here.Bytes()[(layer*16+local)*size:][:size]
			if string(got) != string(want) {
				t.Fatalf("layer %d, pair %d", layer, i)
			}
		}
	}
	runtime.GC() // nothing is pinned any more

	wrong := *blocks
	wrong.BlockBytes = wrong.BlockBytes[:1]
	if _, err := p.peer.SubmitBlocks(Write, &wrong, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "BlockBytes") {
		t.Fatal(err)
	}
	wrong = *blocks
	wrong.RemoteBlocks = IDs([]int64{1})
	if _, err := p.peer.SubmitBlocks(Write, &wrong, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "RemoteBlocks") {
		t.Fatal(err)
	}
	wrong.RemoteBlocks = IDs([]int32{2, 3, 4, 8, 9})
	if _, err := p.peer.SubmitBlocks(Write, &wrong, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "RemoteBlocks") {
		t.Fatal(err)
	}
}

func TestLayersOfEqualShape(t *testing.T) {
	const size, blocks, layers = 512, 8, 4
	const layer = size * blocks
	p := newPair(t, layers*layer, nil)
	remote, err := p.peer.Region("there")
	if err != nil || remote.Region != p.there.Region() {
		t.Fatal(remote, err)
	}
	fill(p.here.Bytes(), 5)
	cache := UniformBlocks{LocalBase: p.here.Address(), RemoteBase: remote.Address, RemoteRegion: remote.Region,
		LayerBytes: layer, BlockBytes: size, Count: 1, Blocks: blocks}
	var pushes []*Transfer
	for ; cache.First < layers; cache.First++ {
		push, err := p.peer.SubmitUniform(Write, &cache, nil)
		if err != nil {
			t.Fatal(err)
		}
		pushes = append(pushes, push)
	}
	if err := WaitAll(soon(t), pushes...); err != nil {
		t.Fatal(err)
	}
	check(t, p.there.Bytes(), 5)

	fill(p.here.Bytes(), 6)
	cache.First, cache.Count, cache.Blocks = 2, 2, 0
	cache.LocalBlocks, cache.RemoteBlocks = IDs([]int32{1, 2, 7}), IDs([]int32{0, 3, 5})
	push, err := p.peer.SubmitUniform(Write, &cache, &TransferOptions{Notify: []byte("layers")})
	if err != nil {
		t.Fatal(err)
	}
	if result, err := push.Wait(soon(t)); err != nil || result.RequestsIn != 6 || result.Notification != NotificationDelivered {
		t.Fatalf("%+v %v", result, err)
	}
	for number := 2; number < layers; number++ {
		for i, local := range []int{1, 2, 7} {
			to := []int{0, 3, 5}[i]
			got, want := p.there.Bytes()[number*layer+to*size:][:size], p.here.Bytes()[number*layer+local*size:][:size]
			if string(got) != string(want) {
				t.Fatalf("layer %d, pair %d", number, i)
			}
		}
	}
	check(t, p.there.Bytes()[:2*layer], 5)

	for want, wrong := range map[string]func(*UniformBlocks){
		"First -1":                      func(l *UniformBlocks) { l.First = -1 },
		"RemoteBlocks has 1 ids":        func(l *UniformBlocks) { l.RemoteBlocks = IDs([]int32{1}) },
		"RemoteBlocks has ids of 8":     func(l *UniformBlocks) { l.RemoteBlocks = IDs([]int64{1, 2, 3}) },
		"there are lists of blocks":     func(l *UniformBlocks) { l.Blocks = 1 },
		"block_bytes is 0":              func(l *UniformBlocks) { l.BlockBytes = 0 },
		"local_ids is empty":            func(l *UniformBlocks) { l.LocalBlocks, l.RemoteBlocks = BlockIDs{}, BlockIDs{} },
		"remote_stride 8 is less than ": func(l *UniformBlocks) { l.RemoteStride = 8 },
	} {
		bad := cache
		wrong(&bad)
		if _, err := p.peer.SubmitUniform(Write, &bad, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := p.peer.SubmitUniform(Write, nil, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestWaitAllReturnsTheFirstThatIsNotDone(t *testing.T) {
	p := newPair(t, 4096, nil)
	submit := func(options *TransferOptions) *Transfer {
		transfer, err := p.peer.Submit(Write, []Request{p.request(0, 64)}, options)
		if err != nil {
			t.Fatal(err)
		}
		return transfer
	}
	// The far engine's application takes no notifications: one of these never ends by itself.
	all := []*Transfer{submit(nil)}
	for range 5000 {
		all = append(all, submit(&TransferOptions{Notify: []byte("word"), Deadline: Forever}))
	}
	if err := WaitAll(soon(t), all[:2]...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(soon(t))
	cancel()
	if err := WaitAll(ctx, all...); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for i, transfer := range all {
		select {
		case <-transfer.Done():
		default:
			t.Fatalf("transfer %d is not final", i)
		}
	}
	for _, unknown := range []string{"no such", "there\x00"} {
		if _, err := p.peer.Region(unknown); !errors.Is(err, ErrNotRegistered) {
			t.Fatal(unknown, err)
		}
	}
}

func TestMemoryOfAnotherAllocator(t *testing.T) {
	p := newPair(t, 4096, nil)
	mapping, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mapping)
	memory, err := p.near.Register(unsafe.Pointer(&mapping[0]), len(mapping), nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(mapping, 5)
	if _, err := p.peer.Write(soon(t), []Request{{memory.Address(), p.there.Address(), 4096, 0}}, nil); err != nil {
		t.Fatal(err)
	}
	check(t, p.there.Bytes(), 5)
	for range 2 {
		if err := memory.Close(); err != nil || memory.Bytes() != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.peer.Write(soon(t), []Request{{memory.Address(), p.there.Address(), 4096, 0}}, nil); !errors.Is(err, ErrNotRegistered) {
		t.Fatal(err)
	}
}

func TestABatchIsRegisteredWholeOrNotAtAll(t *testing.T) {
	p := newPair(t, 3*4096, nil)
	mapping, err := syscall.Mmap(-1, 0, 4*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mapping)
	// Every second page, so that no two are neighbours.
	ranges := []Range{{unsafe.Pointer(&mapping[0]), 4096}, {unsafe.Pointer(&mapping[8192]), 4096}}
	memories, err := p.near.RegisterBatch(ranges, nil)
	if err != nil || len(memories) != 2 {
		t.Fatal(memories, err)
	}
	for i, memory := range memories {
		fill(memory.Bytes(), uint64(i))
		request := Request{memory.Address(), p.there.Address() + uint64(i)*4096, 4096, 0}
		if _, err := p.peer.Write(soon(t), []Request{request}, nil); err != nil {
			t.Fatal(err)
		}
		check(t, p.there.Bytes()[i*4096:][:4096], uint64(i))
		if err := memory.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var failed *Error
	for what, wrong := range map[string]Range{
		"length": {unsafe.Pointer(&mapping[4096]), 0}, "overlaps": {unsafe.Pointer(&mapping[8192]), 1},
	} {
		_, err := p.near.RegisterBatch([]Range{ranges[1], wrong}, nil)
		if !errors.As(err, &failed) || failed.RequestIndex != 1 || !strings.Contains(failed.Message, what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if stats, err := p.near.Stats(); err != nil || stats.Regions != 1 {
		t.Fatal(stats.Regions, err)
	}
	if memories, err := p.near.RegisterBatch(nil, nil); err != nil || memories != nil {
		t.Fatal(memories, err)
	}
}

func TestResultsOfEachRequestAreKeptWhenAskedFor(t *testing.T) {
	p := newPair(t, 64*8, nil)
	requests := make([]Request, 8)
	for i := range requests {
		requests[i] = p.request(64*i, 8*(i+1))
	}
	keep := &TransferOptions{KeepResults: true}
	for _, transports := range []Transports{AllowTCP, AllowLocal} {
		keep.Transports = transports
		transfer, err := p.peer.Submit(Write, requests, keep)
		if err != nil {
			t.Fatal(err)
		}
		result, err := transfer.Wait(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range transfer.Results() {
			if r.Index != uint64(i) || r.Status != OK || r.BytesConfirmed != uint64(8*(i+1)) || r.Transport != result.Transport {
				t.Errorf("%+v", r)
			}
		}
		if len(transfer.Results()) != len(requests) {
			t.Fatal(transfer.Results())
		}

		wrong := append([]Request{{p.here.Address(), 8, 8, 0}}, requests...) // nothing is registered there
		transfer, err = p.peer.Submit(Write, wrong, keep)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = transfer.Wait(soon(t)); !errors.Is(err, ErrPartial) {
			t.Fatal(err)
		}
		results := transfer.Results()
		if len(results) != 9 || results[0].Status == OK || results[8].Status != OK || results[8].BytesConfirmed != 64 {
			t.Fatalf("%+v", results)
		}
	}
	transfer, err := p.peer.Submit(Write, requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transfer.Wait(soon(t)); err != nil || transfer.Results() != nil {
		t.Fatal(transfer.Results(), err)
	}
	if stats, err := p.near.Stats(); err != nil || stats.Transfers != 0 {
		t.Fatal(stats.Transfers, err)
	}
}

func TestAnEngineIsItsOwnPeer(t *testing.T) {
	e := newEngine(t, Config{"listen_address": "", "transports": "tcp"})
	memory, err := e.Alloc(8192, &RegionOptions{Name: "own"})
	if err != nil {
		t.Fatal(err)
	}
	own, err := e.OwnPeer()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := e.OwnPeer(); err != nil || again != own {
		t.Fatal(again, err)
	}
	if peers, err := e.Peers(); err != nil || len(peers) != 0 {
		t.Fatal(peers, err)
	}
	memory.Bytes()[4095] = 7
	halves := []Request{{memory.Address(), memory.Address() + 4096, 4096, memory.Region()}}
	if result, err := own.Write(soon(t), halves, nil); err != nil || result.Transport != TransportLocal {
		t.Fatal(result, err)
	}
	if memory.Bytes()[8191] != 7 {
		t.Fatal("nothing has moved")
	}
	if err := own.Close(); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
}

func TestThePeerInAllItsFunctions(t *testing.T) {
	p := newPair(t, 4096, nil)
	info, err := p.peer.Info()
	if err != nil || info.State != PeerUp || info.Address != p.far.Address() || !info.SameHost {
		t.Fatal(info, err)
	}
	regions, err := p.peer.Regions()
	if err != nil || len(regions) != 1 || regions[0] != (RegionInfo{p.there.Region(), RemoteRead | RemoteWrite, p.there.Address(), 4096, "there", MemoryHost, 0, 1}) {
		t.Fatal(regions, err)
	}
	paths, err := p.peer.Paths()
	if err != nil || len(paths) == 0 || paths[0].Why == "" {
		t.Fatal(paths, err)
	}
	if trip, err := p.peer.Probe(soon(t)); err != nil || trip <= 0 {
		t.Fatal(trip, err)
	}
	descriptor, err := p.far.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := p.near.Import(soon(t), descriptor); err != nil || again != p.peer {
		t.Fatal(again, err)
	}
	if peers, err := p.near.Peers(); err != nil || len(peers) != 1 || peers[0] != p.peer {
		t.Fatal(peers, err)
	}
	if again, err := p.near.Connect(soon(t), p.far.Address()); err != nil || again != p.peer {
		t.Fatal(again, err)
	}
	if stats, err := p.near.Stats(); err != nil || stats.PeersUp != 1 || stats.Regions != 1 {
		t.Fatal(stats, err)
	}
	if text, err := p.near.Metrics(); err != nil || !strings.Contains(text, "ferry_") {
		t.Fatal(text, err)
	}
	if len(Settings()) < 10 || Version() == "" {
		t.Fatal(Settings())
	}
	far, err := p.far.Peers()
	if err != nil || len(far) != 1 {
		t.Fatal(far, err)
	}
	if err := far[0].Fence(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.peer.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.peer.Write(soon(t), []Request{p.request(0, 8)}, nil); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerLost) {
		t.Fatal(err)
	}
}

func TestManyGoroutinesEachWithItsOwnBytes(t *testing.T) {
	const goroutines, rounds, bytes = 64, 50, 1024
	p := newPair(t, 2*goroutines*bytes, nil)
	var all sync.WaitGroup
	for g := range goroutines {
		together(&all, func() {
			options := &TransferOptions{Transports: []Transports{0, AllowTCP}[g%2]}
			there := p.request(g*bytes, bytes)
			back := there
			back.Local += goroutines * bytes
			mine, echo := p.here.Bytes()[g*bytes:][:bytes], p.here.Bytes()[(goroutines+g)*bytes:][:bytes]
			for round := range rounds {
				seed := uint64(g)<<32 | uint64(round)
				fill(mine, seed)
				if _, err := p.peer.Write(soon(t), []Request{there}, options); err != nil {
					t.Error(err)
					return
				}
				transfer, err := p.peer.Submit(Read, []Request{back}, options)
				if err != nil {
					t.Error(err)
					return
				}
				if result, err := transfer.Wait(context.Background()); err != nil || result.BytesConfirmed != bytes {
					t.Errorf("%+v %v", result, err)
					return
				}
				check(t, echo, seed)
			}
		})
	}
	all.Wait()
	stats, err := p.near.Stats()
	if err != nil || stats.TransfersDone != 2*goroutines*rounds || stats.Transfers != 0 {
		t.Fatalf("%+v %v", stats, err)
	}
}

// More transfers than the queue has room for; nobody waits for them.
func TestTransfersThatNobodyWaitsForAreReleased(t *testing.T) {
	p := newPair(t, 64, Config{"transfers_max": "1024"})
	for i := range 5000 {
		transfer, err := p.peer.Submit(Write, []Request{p.request(0, 64)}, []*TransferOptions{nil, overTCP}[i%2])
		if errors.Is(err, ErrLimit) {
			t.Fatalf("after %d: %v", i, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			<-transfer.Done()
		}
		if i%2 == 1 {
			<-transfer.Done()
		}
	}
}

// Write returns no Transfer, so nobody could release a handle that is kept for its results.
func TestWriteKeepsNothingWhenResultsAreAskedFor(t *testing.T) {
	p := newPair(t, 64, Config{"transfers_max": "64"})
	keep := &TransferOptions{KeepResults: true, Transports: AllowTCP}
	for i := range 300 {
		if _, err := p.peer.Write(soon(t), []Request{p.request(0, 64)}, keep); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
}
