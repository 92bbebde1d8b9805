package kv

// #include <ferry_kv.h>
import "C"

import (
	"unsafe"

	"ferry/internal/bridge"
)

// Metrics returns the cache's numbers in Prometheus' text format: what is under way, leased blocks, bytes, and handoffs by
// their ends.
func (c *Cache) Metrics() (string, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.handle == nil {
		return "", closed("metrics")
	}
	text, err := bridge.Bytes("metrics", func(buffer unsafe.Pointer, capacity uintptr, length *uintptr, ce unsafe.Pointer) int32 {
		var count C.size_t
		status := C.ferry_kv_metrics(c.handle, (*C.char)(buffer), C.size_t(capacity), &count, (*C.ferry_error)(ce))
		*length = uintptr(count)
		return int32(status)
	})
	return string(text), err
}
