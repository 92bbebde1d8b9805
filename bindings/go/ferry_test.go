package ferry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
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

// slow is what keeps a transfer under way until the test says otherwise: a peer that is stopped.
// It runs this test's own program as the peer; see TestMain.
type slow struct {
	command *exec.Cmd
	engine  *Engine
	peer    Peer
	here    *Memory
	remote  RegionInfo
}

const slowBytes = 1 << 20

func TestMain(m *testing.M) {
	if os.Getenv("FERRY_GO_TEST_PEER") != "" {
		e, err := Open(nil)
		if err == nil {
			_, err = e.Alloc(slowBytes, nil)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(e.Address())
		io.Copy(io.Discard, os.Stdin) // until the test is over
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newSlow(t *testing.T, config Config) *slow {
	t.Helper()
	s := &slow{command: exec.Command(os.Args[0])}
	s.command.Env = append(os.Environ(), "FERRY_GO_TEST_PEER=1")
	s.command.Stderr = os.Stderr
	if _, err := s.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	lines, err := s.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.command.Process.Kill()
		s.command.Wait()
	})
	var address string
	if _, err := fmt.Fscanln(lines, &address); err != nil {
		t.Fatal(err)
	}
	s.engine = newEngine(t, config)
	if s.here, err = s.engine.Alloc(slowBytes, nil); err != nil {
		t.Fatal(err)
	}
	if s.peer, err = s.engine.Connect(soon(t), address); err != nil {
		t.Fatal(err)
	}
	regions, err := s.peer.Regions()
	if err != nil || len(regions) != 1 {
		t.Fatal(regions, err)
	}
	s.remote = regions[0]
	return s
}

// stop holds up the peer's process, so that TCP transfers to it are not final.
func (s *slow) stop(t *testing.T) {
	t.Helper()
	if err := s.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Until it stands still: its state, the third field, is then T.
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.command.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "T") {
			return
		}
		runtime.Gosched()
	}
}

func (s *slow) resume() { s.command.Process.Signal(syscall.SIGCONT) }

func (s *slow) requests() []Request {
	return []Request{{s.here.Address(), s.remote.Address, slowBytes, s.remote.Region}}
}

var overTCP = &TransferOptions{Transports: AllowTCP}

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
			if result.State != Done || result.Status != OK || result.BytesConfirmed != uint64(length) || result.RequestsIn != 1 {
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
	// Rewind to compare by place.
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
	if err != nil || result.SlicesOut != 2*layers || result.RequestsIn != 5*layers || result.Notification != Delivered {
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
	runtime.GC() // what was pinned is no more

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

func TestErrorsNameTheArgument(t *testing.T) {
	p := newPair(t, 4096, nil)
	array := new([4096]byte)
	for _, c := range []struct {
		name   string
		status Status
		says   string
		call   func() error
	}{
		{"no such setting", ErrInvalid, "lanes", func() error { _, err := Open(Config{"lane": "2"}); return err }},
		{"a bad value", ErrInvalid, "lanes", func() error { _, err := Open(Config{"lanes": "many"}); return err }},
		{"no length", ErrInvalid, "length", func() error { _, err := p.near.Alloc(0, nil); return err }},
		{"a long name", ErrInvalid, "name", func() error {
			_, err := p.near.Alloc(1, &RegionOptions{Name: strings.Repeat("x", 64)})
			return err
		}},
		{"Go memory", ErrInvalid, "address", func() error { _, err := p.near.Register(unsafe.Pointer(array), 4096, nil); return err }},
		{"memory twice", ErrOverlap, "", func() error { _, err := p.near.Register(p.here.address, 4096, nil); return err }},
		{"no address", ErrInvalid, "address", func() error { _, err := p.near.Connect(soon(t), "nowhere"); return err }},
		{"no requests", ErrInvalid, "requests", func() error { _, err := p.peer.Write(soon(t), nil, nil); return err }},
		{"no peer", ErrInvalid, "peer", func() error { _, err := Peer{}.Write(soon(t), nil, nil); return err }},
		{"no operation", ErrInvalid, "op", func() error { _, err := p.peer.Submit(7, []Request{p.request(0, 8)}, nil); return err }},
		{"no blocks", ErrInvalid, "blocks", func() error { _, err := p.peer.SubmitBlocks(Write, nil, nil); return err }},
		{"a queue for nothing", ErrInvalid, "what", func() error { _, err := p.near.Queue(0); return err }},
		{"a long notification", ErrLimit, "", func() error { return p.peer.Notify(soon(t), make([]byte, 16385)) }},
		{"no descriptor", ErrInvalid, "descriptor", func() error { _, err := p.near.Import(soon(t), []byte("x")); return err }},
	} {
		err := c.call()
		if !errors.Is(err, c.status) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	runtime.KeepAlive(array)
}

func TestAFailedSubmitSaysWhichRequest(t *testing.T) {
	p := newPair(t, 4096, nil)
	bad := p.request(0, 8)
	bad.Local = 4096
	var failed *Error
	_, err := p.peer.Write(soon(t), []Request{p.request(0, 8), bad}, nil)
	if !errors.As(err, &failed) || failed.Status != ErrNotRegistered || failed.RequestIndex != 1 || failed.Result != nil {
		t.Fatalf("%#v", err)
	}
}

func TestAFailedTransferHasTheResultOfEachFailedRequest(t *testing.T) {
	p := newPair(t, 3*4096, nil)
	fill(p.here.Bytes(), 3)
	requests := []Request{p.request(0, 4096), p.request(4096, 4096), p.request(8192, 4096)}
	requests[1].Remote, requests[1].RemoteRegion = 4096, 0 // which nobody has mapped there
	for _, how := range []*TransferOptions{nil, overTCP} {
		_, err := p.peer.Write(soon(t), requests, how)
		var failed *Error
		if !errors.As(err, &failed) || !errors.Is(err, ErrPartial) {
			t.Fatalf("%#v", err)
		}
		if failed.RequestIndex != 1 || len(failed.Requests) != 1 || failed.Requests[0].Index != 1 ||
			failed.Requests[0].Status != ErrNotRegistered || failed.Result.RequestsFailed != 1 || failed.Result.BytesConfirmed != 8192 {
			t.Fatalf("%+v %+v", failed, failed.Result)
		}
		check(t, p.there.Bytes()[:4096], 3)
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
	if err := memory.Close(); err != nil || memory.Bytes() != nil {
		t.Fatal(err)
	}
	if err := memory.Close(); !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
	if _, err := p.peer.Write(soon(t), []Request{{memory.Address(), p.there.Address(), 4096, 0}}, nil); !errors.Is(err, ErrNotRegistered) {
		t.Fatal(err)
	}
}

func TestNotificationsComeInOrderBehindTheirData(t *testing.T) {
	p := newPair(t, 64*64, nil)
	queue, err := p.far.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.far.Queue(Notifications); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	fill(p.here.Bytes(), 11)
	for i := range 64 {
		options := &TransferOptions{Notify: fmt.Appendf(nil, "block %d", i)}
		if _, err := p.peer.Submit(Write, []Request{p.request(i*64, 64)}, options); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.peer.Notify(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		event, err := queue.Next(soon(t))
		if err != nil || event.Kind != EventNotification || string(event.Data) != fmt.Sprintf("block %d", i) {
			t.Fatal(event, err)
		}
		if got, want := p.there.Bytes()[i*64:][:64], p.here.Bytes()[i*64:][:64]; string(got) != string(want) {
			t.Fatalf("block %d is not there", i)
		}
	}
	event, err := queue.Next(soon(t))
	if err != nil || event.Data == nil || len(event.Data) != 0 {
		t.Fatal(event, err)
	}
	// The peer in the event can be used as one that was connected to.
	if err := event.Peer.Notify(context.Background(), []byte("answer")); err != nil {
		t.Fatal(err)
	}
}

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

func TestClosingAQueueWakesWhoWaits(t *testing.T) {
	near, far := newEngine(t, nil), newEngine(t, nil)
	first, err := far.Queue(Notifications | Peers)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Connect(soon(t), far.Address()); err != nil {
		t.Fatal(err)
	}
	if event, err := first.Next(soon(t)); err != nil || event.Kind != EventPeerUp {
		t.Fatal(event, err)
	}
	failed := make(chan error)
	go func() { _, err := first.Next(context.Background()); failed <- err }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) && !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
	second, err := far.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
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
	if err != nil || len(regions) != 1 || regions[0] != (RegionInfo{p.there.Region(), RemoteRead | RemoteWrite, p.there.Address(), 4096, "there"}) {
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

func TestConnectFails(t *testing.T) {
	e := newEngine(t, nil)
	other := newEngine(t, nil)
	address := other.Address()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := e.Connect(ctx, address); !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Connect(gone, address); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
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
	if !errors.Is(err, ErrCancelled) || !errors.Is(err, context.Canceled) || result.State != Cancelled {
		t.Fatal(result, err)
	}
	// Final means that the memory is free.
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.here.Free(ctx); err != nil {
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

// Transfers that wait take goroutines, not threads.
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

// More transfers than the queue has room for, none of which is waited for.
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
	if err := view.Close(); !errors.Is(err, ErrClosed) {
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

func TestStatusesAreErrorsByTheirNames(t *testing.T) {
	if ErrTimeout.Error() != "ferry: TIMEOUT" || OK.String() != "OK" || Status(-999).String() != "UNKNOWN" {
		t.Fatal(ErrTimeout, OK, Status(-999))
	}
	err := error(&Error{Op: "write", Status: ErrSystem, OSError: syscall.ECONNRESET, RequestIndex: 2, Message: "what", Context: context.Canceled})
	for _, cause := range []error{ErrSystem, syscall.ECONNRESET, context.Canceled} {
		if !errors.Is(err, cause) {
			t.Errorf("not %v", cause)
		}
	}
	if err.Error() != "ferry: write: SYSTEM: what (request 2) (context canceled)" {
		t.Error(err)
	}
}

// Every status in the header has a constant here.
func TestEveryStatusHasAConstant(t *testing.T) {
	header, err := os.ReadFile(filepath.Join("..", "..", "include", "ferry.h"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("SKIPPED: the module stands alone, without ferry.h beside it")
	}
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("status.go")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^#define (FERRY_ERR_\w+)`).FindAllStringSubmatch(string(header), -1)
	if len(found) < 20 {
		t.Fatal(len(found))
	}
	for _, match := range found {
		if !strings.Contains(string(source), "= C."+match[1]+"\n") {
			t.Errorf("%s has no constant", match[1])
		}
	}
}
