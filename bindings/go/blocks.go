package ferry

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// BlockIDs is a list of block ids; see IDs.
type BlockIDs struct {
	first   unsafe.Pointer
	count   int
	idBytes int
}

// IDs makes a list of block ids from a slice, without a copy.
func IDs[T ~int32 | ~int64](ids []T) BlockIDs {
	var id T
	return BlockIDs{unsafe.Pointer(unsafe.SliceData(ids)), len(ids), int(unsafe.Sizeof(id))}
}

// Blocks are pairs of blocks, the same in every layer of a cache. ferry makes one request for each layer l
// and pair i:
//
//	local  = LocalBase[l]  + LocalBlocks[i]  * LocalStride[l]
//	remote = RemoteBase[l] + RemoteBlocks[i] * RemoteStride[l]
//	length = BlockBytes[l]
//
// with the index l * pairs + i. ferry merges neighbours. The first five slices have one element per layer.
type Blocks struct {
	LocalBase, RemoteBase []uint64
	// Bytes from one block to the next; at least BlockBytes.
	LocalStride, RemoteStride []uint64
	BlockBytes                []uint64
	// RemoteRegion has Request.RemoteRegion for each layer; nil means 0 for every layer.
	RemoteRegion []Region
	// LocalBlocks and RemoteBlocks have the same length and the same type.
	LocalBlocks, RemoteBlocks BlockIDs
}

// check compares the lengths of the slices: ferry gets one length for several slices and cannot compare them.
func (b *Blocks) check(op string) error {
	layers := len(b.LocalBase)
	for _, slice := range []struct {
		name   string
		length int
	}{
		{"RemoteBase", len(b.RemoteBase)},
		{"LocalStride", len(b.LocalStride)},
		{"RemoteStride", len(b.RemoteStride)},
		{"BlockBytes", len(b.BlockBytes)},
	} {
		if slice.length != layers {
			return invalid(op, "%s has %d layers, LocalBase has %d", slice.name, slice.length, layers)
		}
	}
	if b.RemoteRegion != nil && len(b.RemoteRegion) != layers {
		return invalid(op, "RemoteRegion has %d layers, LocalBase has %d", len(b.RemoteRegion), layers)
	}
	return samePairs(op, b.LocalBlocks, b.RemoteBlocks)
}

// samePairs compares two lists of ids, because ferry gets one length and one id size for both.
func samePairs(op string, local, remote BlockIDs) error {
	if local.count != remote.count {
		return invalid(op, "RemoteBlocks has %d ids, LocalBlocks has %d", remote.count, local.count)
	}
	if local.idBytes != remote.idBytes {
		return invalid(op, "RemoteBlocks has ids of %d bytes, LocalBlocks of %d", remote.idBytes, local.idBytes)
	}
	return nil
}

// SubmitBlocks starts a transfer of blocks. It behaves as Submit otherwise.
func (p Peer) SubmitBlocks(op Op, blocks *Blocks, options *TransferOptions) (*Transfer, error) {
	if blocks == nil {
		return nil, invalid(op.String(), "blocks is nil")
	}
	if err := blocks.check(op.String()); err != nil {
		return nil, err
	}
	e := p.engine
	if e == nil {
		return nil, invalid(op.String(), "the peer is the zero Peer; Engine.Connect returns one")
	}
	if err := e.enter(op.String()); err != nil {
		return nil, err
	}
	defer e.leave()
	// The struct holds addresses of Go arrays, which must not move during the call.
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinned := func(pointer unsafe.Pointer) unsafe.Pointer {
		if pointer != nil {
			pinner.Pin(pointer)
		}
		return pointer
	}
	numbers := func(slice []uint64) *C.uint64_t {
		return (*C.uint64_t)(pinned(unsafe.Pointer(unsafe.SliceData(slice))))
	}
	full := C.ferry_blocks{
		struct_size:   C.sizeof_ferry_blocks,
		id_bytes:      C.uint32_t(blocks.LocalBlocks.idBytes),
		layer_count:   C.size_t(len(blocks.LocalBase)),
		local_base:    numbers(blocks.LocalBase),
		remote_base:   numbers(blocks.RemoteBase),
		local_stride:  numbers(blocks.LocalStride),
		remote_stride: numbers(blocks.RemoteStride),
		block_bytes:   numbers(blocks.BlockBytes),
		remote_region: (*C.ferry_region)(pinned(unsafe.Pointer(unsafe.SliceData(blocks.RemoteRegion)))),
		pair_count:    C.size_t(blocks.LocalBlocks.count),
		local_blocks:  pinned(blocks.LocalBlocks.first),
		remote_blocks: pinned(blocks.RemoteBlocks.first),
	}
	return p.start(op, options, func(o *C.ferry_go_options, notify unsafe.Pointer, length C.size_t,
		t *Transfer, c *C.ferry_error) C.ferry_status {
		return C.ferry_go_submit_blocks(e.handle, C.ferry_peer(p.handle), C.uint32_t(op), &full, o, notify, length,
			&t.handle, c)
	})
}

// start submits a transfer of blocks by `call`, and registers the transfer for its end.
func (p Peer) start(op Op, options *TransferOptions, call func(*C.ferry_go_options, unsafe.Pointer, C.size_t,
	*Transfer, *C.ferry_error) C.ferry_status) (*Transfer, error) {
	e := p.engine
	t := &Transfer{engine: e, op: op, id: e.reactor.ids.Add(1), keep: bool(options.keep()), done: make(chan struct{})}
	options_, notify, notifyLength := e.reactor.options(options, t.id, 0)
	var c C.ferry_error
	status := call(&options_, notify, notifyLength, t, &c)
	if status < 0 {
		return nil, newError(op.String(), Status(status), &c)
	}
	t.expect()
	return t, nil
}
