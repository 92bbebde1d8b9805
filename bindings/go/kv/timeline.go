package kv

// #include <ferry_kv.h>
import "C"

import (
	"time"
	"unsafe"

	"ferry"
	"ferry/internal/bridge"
	"ferry/internal/clock"
)

// TimelineKind says what an entry of a timeline is.
type TimelineKind uint32

// The kinds of entries.
const (
	TimelineOffered TimelineKind = C.FERRY_KV_TIMELINE_OFFERED // an offer was made
	TimelineTaken   TimelineKind = C.FERRY_KV_TIMELINE_TAKEN   // a take was made
	TimelineReady   TimelineKind = C.FERRY_KV_TIMELINE_READY   // the layers are ready up to EndToken
	// TimelineGranted, in a take by ModePull: the producer tells Peer what may be read, or Peer tells the consumer.
	TimelineGranted TimelineKind = C.FERRY_KV_TIMELINE_GRANTED
	TimelinePosted  TimelineKind = C.FERRY_KV_TIMELINE_POSTED  // a transfer of the layers and tokens was posted
	TimelineFinal   TimelineKind = C.FERRY_KV_TIMELINE_FINAL   // the transfer is final, with Detail as its status
	TimelineArrived TimelineKind = C.FERRY_KV_TIMELINE_ARRIVED // for a take by ModePush: layers and tokens have arrived
	TimelineLayers  TimelineKind = C.FERRY_KV_TIMELINE_LAYERS  // for a take: the layers before EndLayer are complete
	TimelineSealed  TimelineKind = C.FERRY_KV_TIMELINE_SEALED  // the offer is whole, with EndToken tokens
	TimelineEnded   TimelineKind = C.FERRY_KV_TIMELINE_ENDED   // FirstLayer is the EventKind, Detail the status
	TimelineMarked  TimelineKind = C.FERRY_KV_TIMELINE_MARK    // by Mark: FirstLayer is the layer, Detail the MarkKind
)

// MarkKind is the kind of a mark. Every number but MarkCompute is the application's own.
type MarkKind uint32

// MarkCompute is a mark of compute.
const MarkCompute MarkKind = C.FERRY_KV_MARK_COMPUTE

// A TimelineEntry is one step of a handoff, or one of the application's marks. Fields that What doesn't set are zero.
type TimelineEntry struct {
	What TimelineKind
	// Number rises by one with each entry of a recording, from 0 on.
	Number uint64
	// Begin and End are equal for a step that takes no time.
	Begin, End time.Time
	// ID is the first four bytes of the handoff's ID, the first byte highest.
	ID     uint32
	Detail int32
	// Layers of transfers are those of the consumer's layout.
	FirstLayer, EndLayer uint32
	FirstToken, EndToken uint64
	// Bytes, Peer and Transfer belong to a transfer: its payload, the other side, and its number.
	Bytes    uint64
	Peer     ferry.Peer
	Transfer uint64
}

// StartTimeline records a timeline of the cache's handoffs from now on, and forgets an earlier one. It has at most
// entriesMax entries, 1 to 1,048,576; new ones overwrite the oldest.
func (c *Cache) StartTimeline(entriesMax int) error {
	const op = "start timeline"
	if entriesMax < 0 {
		return invalid(op, "entriesMax is %d; it must not be negative", entriesMax)
	}
	return c.call(op, func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_timeline_start(c.handle, C.size_t(entriesMax), ce)
	})
}

// StopTimeline ends the recording, and forgets it. It does nothing while there is none.
func (c *Cache) StopTimeline() error {
	return c.call("stop timeline", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_timeline_stop(c.handle, ce)
	})
}

// Mark adds the application's own work on a layer to the timeline, from begin to end. It does
// nothing while no recording is on; the ID need not be that of an offer or a take.
func (c *Cache) Mark(id ID, kind MarkKind, layer uint32, begin, end time.Time) error {
	return c.call("mark", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_timeline_mark(c.handle, id.c(), C.uint32_t(kind), C.uint32_t(layer),
			C.uint64_t(clock.Nanoseconds(begin)), C.uint64_t(clock.Nanoseconds(end)), ce)
	})
}

// Timeline returns the recorded entries from the number first on, the oldest first; they stay recorded. The next ones
// are read from the last one's Number + 1 on. Entries that were overwritten are missing. Read them before Close.
func (c *Cache) Timeline(first uint64) ([]TimelineEntry, error) {
	var entries []TimelineEntry
	some := make([]C.ferry_kv_timeline_entry, 1024)
	for {
		var count C.size_t
		err := c.call("timeline", func(ce *C.ferry_error) C.ferry_status {
			return C.ferry_kv_timeline_read(c.handle, C.uint64_t(first), &some[0], C.sizeof_ferry_kv_timeline_entry,
				C.size_t(len(some)), &count, ce)
		})
		if err != nil {
			return nil, err
		}
		for i := range some[:count] {
			entries = append(entries, c.entry(&some[i]))
			first = uint64(some[i].number) + 1
		}
		if int(count) < len(some) {
			return entries, nil
		}
	}
}

func (c *Cache) entry(e *C.ferry_kv_timeline_entry) TimelineEntry {
	entry := TimelineEntry{
		What: TimelineKind(e.what), Number: uint64(e.number),
		Begin: clock.Time(uint64(e.begin_ns)), End: clock.Time(uint64(e.end_ns)),
		ID: uint32(e.id), Detail: int32(e.detail),
		FirstLayer: uint32(e.first_layer), EndLayer: uint32(e.end_layer),
		FirstToken: uint64(e.first_token), EndToken: uint64(e.end_token),
		Bytes: uint64(e.bytes), Transfer: uint64(e.transfer),
	}
	if e.peer != 0 {
		entry.Peer = bridge.MakePeer(c.engine, uint64(e.peer)).(ferry.Peer)
	}
	return entry
}

// TimelineSVG draws entries as a picture, SVG: a lane for each layer, with compute and transfers as bars, and the ends
// of handoffs as lines. The entries may be of several caches of one host, in any order. It needs no cache. ErrLimit:
// more than 1,048,576 entries.
func TimelineSVG(entries []TimelineEntry) (string, error) {
	const op = "timeline picture"
	all := make([]C.ferry_kv_timeline_entry, max(len(entries), 1)) // not NULL
	for i := range entries {
		e := &entries[i]
		_, peer := bridge.Peer(e.Peer)
		all[i] = C.ferry_kv_timeline_entry{
			struct_size: C.sizeof_ferry_kv_timeline_entry, what: C.uint32_t(e.What), number: C.uint64_t(e.Number),
			begin_ns: C.uint64_t(clock.Nanoseconds(e.Begin)), end_ns: C.uint64_t(clock.Nanoseconds(e.End)),
			id: C.uint32_t(e.ID), detail: C.int32_t(e.Detail),
			first_layer: C.uint32_t(e.FirstLayer), end_layer: C.uint32_t(e.EndLayer),
			first_token: C.uint64_t(e.FirstToken), end_token: C.uint64_t(e.EndToken),
			bytes: C.uint64_t(e.Bytes), peer: C.ferry_peer(peer), transfer: C.uint64_t(e.Transfer),
		}
	}
	c := newCError()
	draw := func(buffer *C.char, capacity int) (length C.size_t, err error) {
		status := C.ferry_kv_timeline_svg(&all[0], C.size_t(len(entries)), buffer, C.size_t(capacity), &length, &c)
		return length, failure(op, status, &c)
	}
	// Drawn twice: the same entries give the same text.
	length, err := draw(nil, 0)
	if err != nil {
		return "", err
	}
	text := make([]byte, length+1)
	length, err = draw((*C.char)(unsafe.Pointer(&text[0])), len(text))
	if err != nil {
		return "", err
	}
	return string(text[:length]), nil
}
