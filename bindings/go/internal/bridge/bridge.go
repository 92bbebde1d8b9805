// Package bridge gives the other packages of this module access to internals of package ferry: handles, and the
// conversion of a C status to an error. Package ferry sets the functions. Each package has its own Go types for C's
// types, so these functions take numbers and unsafe pointers.
package bridge

import (
	"context"
	"unsafe"
)

// Enter keeps an engine (a *ferry.Engine) from being freed until leave; handle is its ferry_engine.
var Enter func(engine any, op string) (handle unsafe.Pointer, leave func(), err error)

// Peer returns the engine (a *ferry.Engine) and the ferry_peer of a ferry.Peer; nil and 0 for the zero Peer.
var Peer func(peer any) (engine any, handle uint64)

// MakePeer returns the ferry.Peer of an engine (a *ferry.Engine) and a ferry_peer.
var MakePeer func(engine any, handle uint64) any

// Failure returns nil if the status is not negative, and otherwise an error with the details of the ferry_error at c.
var Failure func(op string, status int32, c unsafe.Pointer) error

// Ended returns the error of a call that its context ended.
var Ended func(op string, cause error) error

// InTurns repeats a call that continues its own work until it returns neither BUSY nor TIMEOUT, or the context ends.
var InTurns func(ctx context.Context, op string, call func(timeoutNs uint64, c unsafe.Pointer) int32) error

// Bytes calls a function that returns bytes or a text until the whole result fits.
var Bytes func(op string, call func(buffer unsafe.Pointer, capacity uintptr, length *uintptr, c unsafe.Pointer) int32) ([]byte, error)
