package ferry

// #include <ferry.h>
import "C"

import (
	"context"
	"unsafe"

	"ferry/internal/bridge"
)

// The other packages of this module reach the engine through internal/bridge.
func init() {
	bridge.Enter = func(engine any, op string) (unsafe.Pointer, func(), error) {
		e := engine.(*Engine)
		if err := e.enter(op); err != nil {
			return nil, nil, err
		}
		return unsafe.Pointer(e.handle), e.leave, nil
	}
	bridge.Peer = func(peer any) (any, uint64) {
		p, _ := peer.(Peer)
		if p.engine == nil {
			return nil, 0
		}
		return p.engine, p.handle
	}
	bridge.MakePeer = func(engine any, handle uint64) any { return Peer{engine.(*Engine), handle} }
	bridge.Failure = func(op string, status int32, c unsafe.Pointer) error {
		return failure(op, C.ferry_status(status), (*C.ferry_error)(c))
	}
	bridge.Ended = func(op string, cause error) error { return ended(op, cause) }
	bridge.InTurns = func(ctx context.Context, op string, call func(uint64, unsafe.Pointer) int32) error {
		return inTurns(ctx, op, func(timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
			return C.ferry_status(call(uint64(timeout), unsafe.Pointer(c)))
		})
	}
	bridge.Bytes = func(op string, call func(unsafe.Pointer, uintptr, *uintptr, unsafe.Pointer) int32) ([]byte, error) {
		c := newCError()
		return bytesOf(
			func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) C.ferry_status {
				var count uintptr
				status := call(buffer, uintptr(capacity), &count, unsafe.Pointer(&c))
				*length = C.size_t(count)
				return C.ferry_status(status)
			},
			func(status C.ferry_status) error { return failure(op, status, &c) })
	}
}
