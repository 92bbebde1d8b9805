package ferry

// #include <ferry_kv.h>
import "C"

import (
	"fmt"
	"strings"
	"time"
)

// String returns the name of the kind: its C constant without FERRY_EVENT_. The other kinds and states print likewise.
func (k EventKind) String() string { return C.GoString(C.ferry_event_name(C.uint32_t(k))) }

func (t Transport) String() string    { return C.GoString(C.ferry_transport_name(C.uint32_t(t))) }
func (k MemoryKind) String() string   { return C.GoString(C.ferry_memory_name(C.uint32_t(k))) }
func (s PeerState) String() string    { return C.GoString(C.ferry_peer_state_name(C.uint32_t(s))) }
func (s State) String() string        { return C.GoString(C.ferry_state_name(C.uint32_t(s))) }
func (f Fence) String() string        { return C.GoString(C.ferry_fence_name(C.uint32_t(f))) }
func (n Notification) String() string { return C.GoString(C.ferry_notification_name(C.uint32_t(n))) }
func (k ChangeKind) String() string   { return C.GoString(C.ferry_directory_change_name(C.uint32_t(k))) }

func (w What) String() string {
	return set(uint64(w), "TRANSFERS", "NOTIFICATIONS", "PEERS", "PEER_STATES")
}
func (a Access) String() string { return set(uint64(a), "REMOTE_READ", "REMOTE_WRITE") }
func (f Flags) String() string {
	return set(uint64(f), "NO_COALESCE", "ORDERED", "CHECKSUM", "ACKED_ONLY", "DURABLE")
}
func (t Transports) String() string {
	return set(uint64(t), "1", "TCP", "LOCAL", "RDMA", "CUDA", "ASCEND")
}

// set joins the names of bits, of which the first has the value 1.
func set(bits uint64, names ...string) string {
	var found []string
	for i, name := range names {
		if bits&(1<<i) != 0 {
			found = append(found, name)
		}
	}
	if rest := bits >> len(names) << len(names); rest != 0 || bits == 0 {
		found = append(found, fmt.Sprintf("%#x", rest))
	}
	return strings.Join(found, "|")
}

func (r Region) String() string { return fmt.Sprintf("region %#x", uint64(r)) }

func (e *Engine) String() string {
	if address := e.Address(); address != "" {
		return "engine at " + address
	}
	return "engine without address"
}

// String returns the address at which the peer listens, or the number of the peer if the address is not known.
func (p Peer) String() string {
	if info, err := p.Info(); err == nil && info.Address != "" {
		return info.Address
	}
	return fmt.Sprintf("peer %#x", p.handle)
}

func (i PeerInfo) String() string {
	return fmt.Sprintf("%s %v, engine %x incarnation %#x, %d lanes, %d transfers", i.Address, i.State, i.EngineID,
		i.Incarnation, i.Lanes, i.TransfersActive)
}

func (r RegionInfo) String() string {
	return fmt.Sprintf("%v %q, %d bytes at %#x, %v %v", r.Region, r.Name, r.Length, r.Address, r.Kind, r.Access)
}

func (i PathInfo) String() string {
	if i.Chosen {
		return fmt.Sprintf("%v, chosen: %s", i.Transport, i.Why)
	}
	return fmt.Sprintf("%v: %s", i.Transport, i.Why)
}

func (m *Memory) String() string {
	return fmt.Sprintf("%d bytes at %#x, %v", m.length, m.Address(), m.region)
}

func (q *Queue) String() string {
	return fmt.Sprintf("queue of %v, channel %d, %v", q.what, q.channel, q.engine)
}

// String returns one line: "PEER_LOST 127.0.0.1:7000: PEER_LOST: the connection was closed".
func (e Event) String() string {
	text := fmt.Sprintf("%v %v", e.Kind, e.Peer)
	switch e.Kind {
	case EventNotification:
		return fmt.Sprintf("%s, channel %d: %.64q", text, e.Channel, e.Data)
	case EventLateApply:
		return fmt.Sprintf("%s: %d bytes at %#x, %v", text, e.Length, e.Address, e.Region)
	case EventPeerDown, EventPeerLost:
		return fmt.Sprintf("%s: %v: %s", text, e.Status, e.Reason)
	}
	return text
}

func (t *Transfer) String() string {
	select {
	case <-t.done:
		if t.result.State == 0 { // the engine was closed before the result was read
			return fmt.Sprintf("%v of which no result is known", t.op)
		}
		return fmt.Sprintf("%v %v", t.op, t.result)
	default:
		return fmt.Sprintf("%v of %v", t.op, t.Progress())
	}
}

func (p Progress) String() string {
	return fmt.Sprintf("%d of %d bytes", p.BytesConfirmed, p.BytesTotal)
}

// String returns one line: "DONE OK, 4096 bytes over TCP in 12µs, fence CONFIRMED, notification DELIVERED".
func (r Result) String() string {
	text := fmt.Sprintf("%v %v, %d bytes over %v in %v, fence %v, notification %v", r.State, r.Status, r.BytesConfirmed,
		r.Transport, time.Duration(r.finished-r.submitted), r.Fence, r.Notification)
	if r.RequestsFailed != 0 {
		text += fmt.Sprintf(", %d of %d requests failed", r.RequestsFailed, r.RequestsIn)
	}
	return text
}

func (r RequestResult) String() string {
	return fmt.Sprintf("request %d %v, %d bytes over %v", r.Index, r.Status, r.BytesConfirmed, r.Transport)
}

func (d *Directory) String() string {
	info, err := d.Info()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("directory %v", info)
}

func (i DirectoryInfo) String() string {
	text := fmt.Sprintf("with %d entries, %d of %d names published", i.Entries, i.NamesPublished, i.Names)
	if !i.Connected {
		text += fmt.Sprintf(", cut off for %v: %s", i.CutOff, i.Why)
	}
	return text
}

func (e DirectoryEntry) String() string {
	text := e.Name + " at " + e.Address
	if e.HasIdentity {
		text += fmt.Sprintf(", engine %x incarnation %#x", e.EngineID, e.Incarnation)
	}
	return text
}

func (c DirectoryChange) String() string { return fmt.Sprintf("%v %v", c.Kind, c.Entry) }
