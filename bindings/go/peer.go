package ferry

// #include <stdlib.h>
// #include <ferry.h>
import "C"

import (
	"context"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// A Peer is a remote engine, whichever side connected. Two Peers are equal if they name the same peer; the
// zero Peer names none.
type Peer struct {
	engine *Engine
	handle uint64
}

// Transport is a means of moving bytes.
type Transport uint32

// The transports. CUDA and Ascend are copies between devices. Other device memory is staged through host
// memory; results then name the transport that carried it between the engines.
const (
	TransportNone   Transport = C.FERRY_TRANSPORT_NONE
	TransportTCP    Transport = C.FERRY_TRANSPORT_TCP
	TransportLocal  Transport = C.FERRY_TRANSPORT_LOCAL
	TransportRDMA   Transport = C.FERRY_TRANSPORT_RDMA
	TransportCUDA   Transport = C.FERRY_TRANSPORT_CUDA
	TransportAscend Transport = C.FERRY_TRANSPORT_ASCEND
)

// PeerState is the state of a session.
type PeerState uint32

// The states of a session.
const (
	PeerConnecting PeerState = C.FERRY_PEER_CONNECTING
	PeerUp         PeerState = C.FERRY_PEER_UP
	PeerDown       PeerState = C.FERRY_PEER_DOWN // being set up again; transfers wait
	PeerLost       PeerState = C.FERRY_PEER_LOST // for good: connect again for a new Peer
)

// PeerInfo is information about a peer.
type PeerInfo struct {
	State PeerState
	// EngineID and Incarnation are drawn when an engine opens; both differ after a restart.
	EngineID    [16]byte
	Incarnation uint64
	// RoundTrip is the round trip of the last probe; 0 before the first probe.
	RoundTrip       time.Duration
	TransfersActive uint64
	Lanes           int
	SameHost        bool
	// Address is "" if the peer doesn't listen.
	Address string
}

// RegionInfo is a region that a peer registered.
type RegionInfo struct {
	Region  Region
	Access  Access
	Address uint64 // as the peer knows it
	Length  uint64
	Name    string
	Kind    MemoryKind // what kind of memory it is there
	Device  int32      // its number in the peer's process, for the kinds that have one; 0 otherwise
	Order   uint64     // rises with each region that the peer registers
}

// PathInfo is one path to a peer, and why it is or is not chosen.
type PathInfo struct {
	Transport Transport
	Chosen    bool
	Why       string
}

// A connect waits for the event with its outcome.
type connect chan connected

type connected struct {
	peer   C.ferry_peer
	status Status
	errno  syscall.Errno
	why    string
}

func (c connect) complete(event *C.ferry_event) {
	why := C.GoStringN((*C.char)(event.data), C.int(event.data_length))
	c <- connected{event.peer, Status(event.status), syscall.Errno(event.os_error), why}
}

// Connect connects to the engine at "host:port", or returns the peer if the two are connected already. The
// context's deadline and the setting connect_timeout_ms bound it. The Message of the error says what failed last. If
// the deadline of the context has passed, errors.Is finds ErrTimeout and context.DeadlineExceeded, whatever the Status.
// If the context is cancelled, the attempt ends by itself in the background.
func (e *Engine) Connect(ctx context.Context, address string) (Peer, error) {
	const op = "connect"
	if cause := ctx.Err(); cause != nil {
		return Peer{}, ended(op, cause)
	}
	var (
		r  *reactor
		id uint64
	)
	wait, text := make(connect, 1), C.CString(address)
	defer C.free(unsafe.Pointer(text))
	err := e.call(op, func(c *C.ferry_error) C.ferry_status {
		r = e.connects
		id = r.ids.Add(1)
		r.add(id, wait)
		status := C.ferry_peer_connect_async(e.handle, text, timeoutOf(ctx), r.queue, C.uint64_t(id), c)
		if status < 0 {
			r.take(id)
		}
		return status
	})
	if err != nil {
		return Peer{}, err
	}
	select {
	case end := <-wait:
		return end.peerOf(e, ctx)
	case <-ctx.Done():
		if end, ok := late(ctx, wait); ok {
			return end.peerOf(e, ctx)
		}
		if r.take(id) != nil {
			r.leftBehind() // its event is still to come
		}
		return Peer{}, ended(op, ctx.Err())
	}
}

// peerOf returns the peer, or why there is none.
func (c connected) peerOf(e *Engine, ctx context.Context) (Peer, error) {
	switch {
	case c.status >= 0:
		return Peer{e, uint64(c.peer)}, nil
	case c.status == ErrClosed && c.why == "":
		return Peer{}, closedError("connect")
	}
	err := newError("connect", c.status, nil)
	err.OSError, err.Message = c.errno, c.why
	return Peer{}, because(err, ctx)
}

// Import connects to the engine that a Descriptor names; ErrStale if another engine answers at its address.
// If the context ends first, the attempt ends by itself in the background.
func (e *Engine) Import(ctx context.Context, descriptor []byte) (Peer, error) {
	const op = "import"
	var peer C.ferry_peer
	// A copy, and no variable of the caller, because the call in the background may outlive this one.
	bytes, found := append([]byte(nil), descriptor...), make(chan C.ferry_peer, 1)
	err := aside(ctx, op, func() error {
		var peer C.ferry_peer
		err := e.call(op, func(c *C.ferry_error) C.ferry_status {
			return C.ferry_descriptor_import(e.handle, unsafe.Pointer(unsafe.SliceData(bytes)), C.size_t(len(bytes)),
				timeoutOf(ctx), &peer, c)
		})
		found <- peer
		return err
	})
	if err != nil {
		return Peer{}, err
	}
	peer = <-found
	return Peer{e, uint64(peer)}, nil
}

// OwnPeer returns the engine as a peer of itself, for transfers between two of its own regions and for notifications to
// its own queues. It needs no connection, no listener and no access rights. If the source of a transfer overlaps its
// destination, the bytes in the destination are undefined.
func (e *Engine) OwnPeer() (Peer, error) {
	var peer C.ferry_peer
	err := e.call("own peer", func(c *C.ferry_error) C.ferry_status {
		return C.ferry_engine_own_peer(e.handle, &peer, c)
	})
	return Peer{e, uint64(peer)}, err
}

// Peers lists the known peers, in no particular order; lost peers stay for a while.
func (e *Engine) Peers() ([]Peer, error) {
	handles, err := listOf(func(out *C.ferry_peer, capacity C.size_t, count *C.size_t) error {
		return e.call("peers", func(c *C.ferry_error) C.ferry_status {
			return C.ferry_peer_list(e.handle, out, capacity, count, c)
		})
	})
	peers := make([]Peer, len(handles))
	for i, handle := range handles {
		peers[i] = Peer{e, uint64(handle)}
	}
	return peers, err
}

// call makes one call into ferry about the peer.
func (p Peer) call(op string, f func(e *C.ferry_engine, peer C.ferry_peer, c *C.ferry_error) C.ferry_status) error {
	if p.engine == nil {
		return invalid(op, "the peer is the zero Peer; Engine.Connect returns one")
	}
	return p.engine.call(op, func(c *C.ferry_error) C.ferry_status {
		return f(p.engine.handle, C.ferry_peer(p.handle), c)
	})
}

// Info returns information about the peer; ErrStale if the engine has forgotten the peer.
func (p Peer) Info() (PeerInfo, error) {
	i := C.ferry_peer_info{struct_size: C.sizeof_ferry_peer_info}
	err := p.call("info", func(e *C.ferry_engine, peer C.ferry_peer, c *C.ferry_error) C.ferry_status {
		return C.ferry_peer_get_info(e, peer, &i, c)
	})
	if err != nil {
		return PeerInfo{}, err
	}
	return PeerInfo{
		State:           PeerState(i.state),
		EngineID:        *(*[16]byte)(unsafe.Pointer(&i.engine_id)),
		Incarnation:     uint64(i.incarnation),
		RoundTrip:       time.Duration(i.round_trip_ns),
		TransfersActive: uint64(i.transfers_active),
		Lanes:           int(i.lanes),
		SameHost:        i.same_host != 0,
		Address:         C.GoString(&i.address[0]),
	}, nil
}

// Regions lists the regions that the peer has announced, in order of address. After Connect the list has all
// regions of the peer; later changes follow shortly after they happen.
func (p Peer) Regions() ([]RegionInfo, error) {
	ask := func(e *C.ferry_engine, peer C.ferry_peer, out *C.ferry_region_info, capacity C.size_t, count *C.size_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_peer_regions(e, peer, out, C.sizeof_ferry_region_info, capacity, count, c)
	}
	return listFrom(p, "regions", ask, newRegionInfo)
}

// Region returns the region of this name, or the last registered one if several have the name; ErrNotRegistered if the
// peer has announced no such region.
func (p Peer) Region(name string) (RegionInfo, error) {
	if strings.IndexByte(name, 0) >= 0 { // C would see the name end there
		err := newError("region", ErrNotRegistered, nil)
		err.Message = "name: the name of a region has no zero"
		return RegionInfo{}, err
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	info := C.ferry_region_info{struct_size: C.sizeof_ferry_region_info}
	err := p.call("region", func(e *C.ferry_engine, peer C.ferry_peer, c *C.ferry_error) C.ferry_status {
		return C.ferry_peer_region(e, peer, text, &info, c)
	})
	if err != nil {
		return RegionInfo{}, err
	}
	return newRegionInfo(&info), nil
}

func newRegionInfo(r *C.ferry_region_info) RegionInfo {
	return RegionInfo{Region(r.region), Access(r.access), uint64(r.address), uint64(r.length), C.GoString(&r.name[0]),
		MemoryKind(r.kind), int32(r.device), uint64(r.order)}
}

// Paths lists every path to the peer, and why it is or is not chosen.
func (p Peer) Paths() ([]PathInfo, error) {
	ask := func(e *C.ferry_engine, peer C.ferry_peer, out *C.ferry_path_info, capacity C.size_t, count *C.size_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_peer_paths(e, peer, out, C.sizeof_ferry_path_info, capacity, count, c)
	}
	return listFrom(p, "paths", ask, func(i *C.ferry_path_info) PathInfo {
		return PathInfo{Transport(i.transport), i.chosen != 0, C.GoString(&i.why[0])}
	})
}

// listFrom returns a list of the peer, with each item of C converted.
func listFrom[T, R any](p Peer, op string,
	ask func(*C.ferry_engine, C.ferry_peer, *T, C.size_t, *C.size_t, *C.ferry_error) C.ferry_status, convert func(*T) R) ([]R, error) {
	list, err := listOf(func(out *T, capacity C.size_t, count *C.size_t) error {
		return p.call(op, func(e *C.ferry_engine, peer C.ferry_peer, c *C.ferry_error) C.ferry_status {
			return ask(e, peer, out, capacity, count, c)
		})
	})
	converted := make([]R, len(list))
	for i := range list {
		converted[i] = convert(&list[i])
	}
	return converted, err
}

// Notify sends bytes to the peer's application on channel 0, and returns when the peer has received them. They keep
// their order with the notifications of transfers to the peer on that channel. It holds a thread while it waits. If the
// context ends first, the call ends by itself in the background, within the setting deadline_ms, and it is unknown
// whether the peer gets the bytes. A Write of no requests with TransferOptions.Notify holds no thread, and can use
// every channel.
func (p Peer) Notify(ctx context.Context, bytes []byte) error {
	const op = "notify"
	var deadline C.uint64_t
	if at, ok := ctx.Deadline(); ok {
		deadline = max(nanoseconds(time.Until(at)), 1)
	}
	if ctx.Done() != nil {
		bytes = append([]byte(nil), bytes...) // the call may outlive this one
	}
	return aside(ctx, op, func() error {
		return p.call(op, func(e *C.ferry_engine, peer C.ferry_peer, c *C.ferry_error) C.ferry_status {
			return C.ferry_notify(e, peer, unsafe.Pointer(unsafe.SliceData(bytes)), C.size_t(len(bytes)), deadline, c)
		})
	})
}

// Probe sends a probe to the peer and waits for the answer; returns the round trip.
func (p Peer) Probe(ctx context.Context) (time.Duration, error) {
	const op = "probe"
	trip := make(chan time.Duration, 1)
	err := aside(ctx, op, func() error {
		var nanoseconds C.uint64_t
		err := p.call(op, func(e *C.ferry_engine, peer C.ferry_peer, c *C.ferry_error) C.ferry_status {
			return C.ferry_peer_probe(e, peer, timeoutOf(ctx), &nanoseconds, c)
		})
		trip <- time.Duration(nanoseconds)
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-trip, nil
}

// Fence returns when nothing that this peer sends can land here any more. The peer's transfers to this engine are cut
// off, and this incarnation of the peer is refused until this engine connects to it. If the error holds the context's
// error, the fence is not complete; call again.
func (p Peer) Fence(ctx context.Context) error {
	return p.inTurns(ctx, "fence", func(e *C.ferry_engine, peer C.ferry_peer, timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_peer_fence(e, peer, timeout, c)
	})
}

// Close closes the session with the peer. Its transfers fail with ErrClosed; Close returns when they are final. For a
// closed peer, and for a peer of a closed engine, it returns nil.
func (p Peer) Close() error { return p.CloseContext(context.Background()) }

// CloseContext is Close with a context; if the context ends first, the peer is still closing: call again.
func (p Peer) CloseContext(ctx context.Context) error {
	return closing(p.inTurns(ctx, "disconnect", func(e *C.ferry_engine, peer C.ferry_peer, timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_peer_close(e, peer, timeout, c)
	}))
}

func (p Peer) inTurns(ctx context.Context, op string, f func(*C.ferry_engine, C.ferry_peer, C.uint64_t, *C.ferry_error) C.ferry_status) error {
	if p.engine == nil {
		return invalid(op, "the peer is the zero Peer; Engine.Connect returns one")
	}
	if err := p.engine.enter(op); err != nil {
		return err
	}
	defer p.engine.leave()
	return inTurns(ctx, op, func(timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
		return f(p.engine.handle, C.ferry_peer(p.handle), timeout, c)
	})
}
