package ferry

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// UniformBlocks are blocks of layers of equal shape, one layer after the other, as in a cache that is one tensor on
// each side.
// ferry makes one request for each of Count layers l, from First on, and each pair i of blocks:
//
//	local  = LocalBase  + (First + l) * LayerBytes       + LocalBlocks[i]  * LocalStride
//	remote = RemoteBase + (First + l) * RemoteLayerBytes + RemoteBlocks[i] * RemoteStride
//	length = BlockBytes
//
// with the index l * pairs + i. ferry merges neighbours.
type UniformBlocks struct {
	// Addresses of block 0 of layer 0.
	LocalBase, RemoteBase uint64
	// Bytes from one layer to the next. RemoteLayerBytes 0 means LayerBytes.
	LayerBytes, RemoteLayerBytes uint64
	// Bytes from one block to the next, at least BlockBytes; 0 means BlockBytes.
	LocalStride, RemoteStride uint64
	BlockBytes                uint64
	// As in Request.
	RemoteRegion Region
	// The first layer, and how many.
	First, Count int
	// Blocks moves the blocks 0 to Blocks-1 of each layer, if LocalBlocks and RemoteBlocks are empty.
	Blocks int
	// LocalBlocks and RemoteBlocks have the same length and the same type.
	LocalBlocks, RemoteBlocks BlockIDs
}

// SubmitUniform starts a transfer of blocks in layers of equal shape. It behaves as Submit otherwise.
func (p Peer) SubmitUniform(op Op, blocks *UniformBlocks, options *TransferOptions) (*Transfer, error) {
	switch {
	case blocks == nil:
		return nil, invalid(op.String(), "blocks is nil")
	case blocks.First < 0 || blocks.Count < 0 || blocks.Blocks < 0:
		return nil, invalid(op.String(), "blocks: First %d, Count %d and Blocks %d must not be negative", blocks.First,
			blocks.Count, blocks.Blocks)
	case blocks.Blocks != 0 && blocks.LocalBlocks.count+blocks.RemoteBlocks.count != 0:
		return nil, invalid(op.String(), "blocks: Blocks is %d, and there are lists of blocks as well", blocks.Blocks)
	}
	if err := samePairs(op.String(), blocks.LocalBlocks, blocks.RemoteBlocks); err != nil {
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
	full := C.ferry_uniform_blocks{
		struct_size:         C.sizeof_ferry_uniform_blocks,
		id_bytes:            C.uint32_t(blocks.LocalBlocks.idBytes),
		first_layer:         C.size_t(blocks.First),
		layer_count:         C.size_t(blocks.Count),
		local_base:          C.uint64_t(blocks.LocalBase),
		remote_base:         C.uint64_t(blocks.RemoteBase),
		local_layer_stride:  C.uint64_t(blocks.LayerBytes),
		remote_layer_stride: C.uint64_t(blocks.RemoteLayerBytes),
		local_stride:        C.uint64_t(blocks.LocalStride),
		remote_stride:       C.uint64_t(blocks.RemoteStride),
		block_bytes:         C.uint64_t(blocks.BlockBytes),
		remote_region:       C.ferry_region(blocks.RemoteRegion),
		pair_count:          C.size_t(blocks.Blocks),
	}
	if blocks.RemoteLayerBytes == 0 {
		full.remote_layer_stride = full.local_layer_stride
	}
	// The struct holds addresses of Go arrays, which must not move during the call.
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if blocks.LocalBlocks.count != 0 {
		pinner.Pin(blocks.LocalBlocks.first)
		pinner.Pin(blocks.RemoteBlocks.first)
		full.pair_count = C.size_t(blocks.LocalBlocks.count)
		full.local_blocks, full.remote_blocks = blocks.LocalBlocks.first, blocks.RemoteBlocks.first
	}
	return p.start(op, options, func(o *C.ferry_go_options, notify unsafe.Pointer, length C.size_t,
		t *Transfer, c *C.ferry_error) C.ferry_status {
		return C.ferry_go_submit_uniform(e.handle, C.ferry_peer(p.handle), C.uint32_t(op), &full, o, notify, length,
			&t.handle, c)
	})
}
