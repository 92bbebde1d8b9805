package kv

// #include <ferry_kv.h>
import "C"

import (
	"time"
	"unsafe"

	"ferry"
	"ferry/internal/bridge"
)

// Stats are counters since the cache was opened, and the current number of objects. ferry_kv_stats documents each.
type Stats struct {
	Offers, Takes, TakesWaiting, Parts, Transfers uint64
	LeasedBlocks                                  uint64
	OldestLease                                   time.Duration
	UnfencedBlocks                                uint64
	BytesSent, BytesReceived                      uint64
	EndedSent, EndedReceived, EndedFailed         uint64
	EndedCancelled, EndedExpiredLease             uint64
	EndedExpiredPressure, EndedPeerLost           uint64
	LateApplies, TimelineOverwritten              uint64
}

// Stats reads the cache's counters.
func (c *Cache) Stats() (Stats, error) {
	s := C.ferry_kv_stats{struct_size: C.sizeof_ferry_kv_stats}
	err := c.call("stats", func(ce *C.ferry_error) C.ferry_status { return C.ferry_kv_get_stats(c.handle, &s, ce) })
	if err != nil {
		return Stats{}, err
	}
	return Stats{
		uint64(s.offers), uint64(s.takes), uint64(s.takes_waiting), uint64(s.parts), uint64(s.transfers),
		uint64(s.leased_blocks), time.Duration(s.oldest_lease_ns), uint64(s.unfenced_blocks),
		uint64(s.bytes_sent), uint64(s.bytes_received),
		uint64(s.ended_sent), uint64(s.ended_received), uint64(s.ended_failed), uint64(s.ended_cancelled),
		uint64(s.ended_expired_lease), uint64(s.ended_expired_pressure), uint64(s.ended_peer_lost),
		uint64(s.late_applies), uint64(s.timeline_overwritten),
	}, nil
}

// EndedFailed returns how many offers and takes have ended by EventFailed with this status.
func (c *Cache) EndedFailed(status ferry.Status) (uint64, error) {
	var count C.uint64_t
	err := c.call("ended failed", func(ce *C.ferry_error) C.ferry_status {
		return C.ferry_kv_ended_failed(c.handle, C.ferry_status(status), &count, ce)
	})
	return uint64(count), err
}

// Metrics returns these numbers in Prometheus' text format.
func (c *Cache) Metrics() (string, error) {
	if err := c.enter("metrics"); err != nil {
		return "", err
	}
	defer c.mu.RUnlock()
	text, err := bridge.Bytes("metrics", func(buffer unsafe.Pointer, capacity uintptr, length *uintptr, ce unsafe.Pointer) int32 {
		var count C.size_t
		status := C.ferry_kv_metrics(c.handle, (*C.char)(buffer), C.size_t(capacity), &count, (*C.ferry_error)(ce))
		*length = uintptr(count)
		return int32(status)
	})
	return string(text), err
}
