package kv

// #include <ferry_kv.h>
import "C"

import (
	"runtime"
	"unsafe"

	"ferry/internal/bridge"
)

// A Plan says which rank sends what to which, for two instances. Every rank of either instance makes the same plan,
// without communication. It never changes.
type Plan struct{ handle *C.ferry_kv_plan }

// NewPlan plans how the instance of target gets what the instance of source holds. Each layout may be that of any rank
// of its instance.
func NewPlan(source, target *Layout) (*Plan, error) {
	if source == nil || target == nil {
		return nil, invalid("plan", "source or target is nil; kv.NewLayout returns a layout")
	}
	p := &Plan{}
	c := newCError()
	err := failure("plan", C.ferry_kv_plan_new(source.c(), target.c(), &p.handle, &c), &c)
	runtime.KeepAlive(source)
	runtime.KeepAlive(target)
	if err != nil {
		return nil, err
	}
	runtime.AddCleanup(p, func(handle *C.ferry_kv_plan) { C.ferry_kv_plan_free(handle) }, p.handle)
	return p, nil
}

// Sources lists the ranks of the source that send to a rank of the target, in their order.
func (p *Plan) Sources(target uint32) ([]uint32, error) {
	return p.ranks("sources", func(out *C.uint32_t, capacity C.size_t, count *C.size_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_kv_plan_sources(p.handle, C.uint32_t(target), out, capacity, count, c)
	})
}

// Targets lists the ranks of the target to which a rank of the source sends, in their order.
func (p *Plan) Targets(source uint32) ([]uint32, error) {
	return p.ranks("targets", func(out *C.uint32_t, capacity C.size_t, count *C.size_t, c *C.ferry_error) C.ferry_status {
		return C.ferry_kv_plan_targets(p.handle, C.uint32_t(source), out, capacity, count, c)
	})
}

func (p *Plan) ranks(op string, call func(*C.uint32_t, C.size_t, *C.size_t, *C.ferry_error) C.ferry_status) ([]uint32, error) {
	defer runtime.KeepAlive(p)
	ranks := make([]uint32, 16)
	for {
		var count C.size_t
		c := newCError()
		status := call((*C.uint32_t)(unsafe.Pointer(&ranks[0])), C.size_t(len(ranks)), &count, &c)
		if err := failure(op, status, &c); err != nil {
			return nil, err
		}
		if int(count) <= len(ranks) {
			return ranks[:count], nil
		}
		ranks = make([]uint32, count)
	}
}

// Explain returns a page for people: who sends how much to whom, and in pieces of what size.
func (p *Plan) Explain() (string, error) {
	defer runtime.KeepAlive(p)
	text, err := bridge.Bytes("explain", func(buffer unsafe.Pointer, capacity uintptr, length *uintptr, c unsafe.Pointer) int32 {
		var count C.size_t
		status := C.ferry_kv_plan_explain(p.handle, (*C.char)(buffer), C.size_t(capacity), &count, (*C.ferry_error)(c))
		*length = uintptr(count)
		return int32(status)
	})
	return string(text), err
}

// A BlockList has the blocks of one group that hold a sequence, in its order. The zero value is the list of a group
// that is not needed, or has no blocks yet.
type BlockList struct {
	IDs []uint32
	// FirstToken is the position of the first block's first token among the tokens that the rank holds, a multiple of
	// the group's BlockTokens: 0, unless earlier tokens have left a window, or a take skips them.
	FirstToken uint64
}

// A Part is which part of a sequence to move; ferry_kv_part has its meaning.
type Part struct {
	// The tokens from FirstToken to before EndToken.
	FirstToken, EndToken uint64
	// The layers from FirstLayer to before EndLayer, as indices into the target's. An EndLayer of 0 means all from
	// FirstLayer on.
	FirstLayer, EndLayer uint32
	// Blocks are both sides' blocks, for each group of the target.
	Blocks []BlockPairs
}

// BlockPairs are the blocks of one group on both sides.
type BlockPairs struct{ Source, Target BlockList }

// A Move is bytes of one layer, by strides; ferry_kv_move has the formula, and Pieces applies it.
type Move struct {
	// Layer is an index into the target's layers.
	Layer uint32
	// Where the first bytes of block 0 would lie on each side, and the bytes from one block to the next.
	Source, Target, SourceStride, TargetStride uint64
	// Bytes are those of each piece.
	Bytes uint64
	// How often each of four nested loops runs, the outermost first, and the bytes from one step to the next.
	Counts, SourceSteps, TargetSteps [4]uint64
	// The blocks, in pairs.
	SourceBlocks, TargetBlocks []uint32
}

// Pieces calls piece for each run of contiguous bytes, with its two addresses.
func (m *Move) Pieces(piece func(source, target, bytes uint64)) {
	for i, block := range m.SourceBlocks {
		m.steps(0, m.Source+uint64(block)*m.SourceStride, m.Target+uint64(m.TargetBlocks[i])*m.TargetStride, piece)
	}
}

func (m *Move) steps(loop int, source, target uint64, piece func(source, target, bytes uint64)) {
	if loop == len(m.Counts) {
		piece(source, target, m.Bytes)
		return
	}
	for step := range m.Counts[loop] {
		m.steps(loop+1, source+step*m.SourceSteps[loop], target+step*m.TargetSteps[loop], piece)
	}
}

// Lower finds the bytes that the rank of source sends to the rank of target for a part of a sequence; none if the two
// exchange nothing. The layouts are those of these two ranks. Nothing is moved.
func (p *Plan) Lower(source, target *Layout, part *Part) ([]Move, error) {
	const op = "lower"
	if part == nil {
		return nil, invalid(op, "part is nil")
	}
	var m arguments
	defer m.free()
	blocks := make([]C.ferry_kv_block_pairs, len(part.Blocks))
	for i, pair := range part.Blocks {
		from, to := pair.Source, pair.Target
		blocks[i] = C.ferry_kv_block_pairs{
			struct_size:   C.sizeof_ferry_kv_block_pairs,
			source_blocks: ids(&m, from.IDs), source_count: C.uint64_t(len(from.IDs)), source_first_token: C.uint64_t(from.FirstToken),
			target_blocks: ids(&m, to.IDs), target_count: C.uint64_t(len(to.IDs)), target_first_token: C.uint64_t(to.FirstToken),
		}
	}
	full := C.ferry_kv_part{
		struct_size: C.sizeof_ferry_kv_part,
		first_token: C.uint64_t(part.FirstToken), end_token: C.uint64_t(part.EndToken),
		first_layer: C.uint32_t(part.FirstLayer), end_layer: C.uint32_t(part.EndLayer),
		blocks: pinned(&m, blocks), group_count: C.uint64_t(len(blocks)),
	}
	if part.EndLayer == 0 {
		full.end_layer = C.UINT32_MAX
	}
	var moves *C.ferry_kv_moves
	c := newCError()
	err := failure(op, C.ferry_kv_plan_lower(p.handle, source.c(), target.c(), &full, &moves, &c), &c)
	runtime.KeepAlive(p)
	runtime.KeepAlive(source)
	runtime.KeepAlive(target)
	if err != nil {
		return nil, err
	}
	defer C.ferry_kv_moves_free(moves)
	return copied(op, moves)
}

// ids are the pinned ids of a list.
func ids(m *arguments, list []uint32) *C.uint32_t {
	return (*C.uint32_t)(unsafe.Pointer(pinned(m, list)))
}

// copied returns the moves as Go's, with lists of their own.
func copied(op string, moves *C.ferry_kv_moves) ([]Move, error) {
	var count C.size_t
	c := newCError()
	if err := failure(op, C.ferry_kv_moves_count(moves, &count, &c), &c); err != nil {
		return nil, err
	}
	all := make([]Move, count)
	for i := range all {
		move := C.ferry_kv_move{struct_size: C.sizeof_ferry_kv_move}
		if err := failure(op, C.ferry_kv_moves_get(moves, C.size_t(i), &move, &c), &c); err != nil {
			return nil, err
		}
		list := func(first *C.uint32_t) []uint32 {
			return append([]uint32(nil), unsafe.Slice((*uint32)(unsafe.Pointer(first)), int(move.pair_count))...)
		}
		all[i] = Move{
			Layer:  uint32(move.layer),
			Source: uint64(move.source), Target: uint64(move.target),
			SourceStride: uint64(move.source_stride), TargetStride: uint64(move.target_stride),
			Bytes:       uint64(move.bytes),
			Counts:      *(*[4]uint64)(unsafe.Pointer(&move.counts)),
			SourceSteps: *(*[4]uint64)(unsafe.Pointer(&move.source_steps)),
			TargetSteps: *(*[4]uint64)(unsafe.Pointer(&move.target_steps)),
			// Moves of equal shape do not share lists, because a caller may change them.
			SourceBlocks: list(move.source_blocks), TargetBlocks: list(move.target_blocks),
		}
	}
	return all, nil
}
