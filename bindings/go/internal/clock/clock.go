// Package clock converts between Go's times and nanoseconds on CLOCK_MONOTONIC, in which ferry tells times.
package clock

import (
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// origin is one moment, as a Go time and on CLOCK_MONOTONIC. Go's times use the same clock, counted from another start.
// origin is the closest pair of a few readings.
var origin = sync.OnceValue(func() (found struct {
	at          time.Time
	nanoseconds int64
}) {
	const monotonic = 1 // CLOCK_MONOTONIC
	closest := time.Duration(1<<63 - 1)
	for range 16 {
		var now syscall.Timespec
		before := time.Now()
		syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&now)), 0)
		if apart := time.Since(before); apart < closest {
			closest, found.at, found.nanoseconds = apart, before.Add(apart/2), now.Nano()
		}
	}
	return found
})

// Time is the moment of CLOCK_MONOTONIC; the zero Time for 0.
func Time(nanoseconds uint64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	o := origin()
	return o.at.Add(time.Duration(int64(nanoseconds) - o.nanoseconds))
}

// Nanoseconds is the moment on CLOCK_MONOTONIC; 0 for the zero Time and before the clock began.
func Nanoseconds(at time.Time) uint64 {
	if at.IsZero() {
		return 0
	}
	o := origin()
	return uint64(max(o.nanoseconds+int64(at.Sub(o.at)), 0))
}
