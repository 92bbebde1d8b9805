// Package kv hands the KV caches of sequences over, from the workers that fill them to those that continue from them.
// It is the Go binding of ferry_kv.h, whose contracts hold here; docs/kv.md says what the words mean.
//
// A [Layout] describes what one rank holds of a paged cache, and a [Plan] says who sends what between two instances
// that divide their caches differently. Both need no engine. A [Cache] is one rank's cache in registered memory of an
// engine: a producer offers the blocks of a sequence, consumers take them into blocks of their own, and the [Event] of
// the end gives each side its blocks back. A timeline shows when each layer was computed and moved.
//
// Errors are those of package ferry. Layouts and plans are freed by the garbage collector, caches by Close. Any
// goroutine may call any method.
package kv

// #cgo pkg-config: ferry
// #include <stdlib.h>
// #include <ferry_kv.h>
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"ferry"
	"ferry/internal/bridge"
)

// GroupKind says what the blocks of a group hold.
type GroupKind uint32

// The kinds of groups.
const (
	GroupFull   GroupKind = C.FERRY_KV_GROUP_FULL   // each token's keys and values
	GroupWindow GroupKind = C.FERRY_KV_GROUP_WINDOW // those of the last WindowTokens tokens
	GroupLatent GroupKind = C.FERRY_KV_GROUP_LATENT // a vector for each token, alike on all ranks that hold the token
	GroupState  GroupKind = C.FERRY_KV_GROUP_STATE  // a state of fixed size; blocks are copied whole
)

// A Group is layers that share their block ids.
type Group struct {
	Kind GroupKind
	// BlockTokens is the number of this rank's tokens in one block; 1 for a GroupState.
	BlockTokens uint32
	// WindowTokens is the window of a GroupWindow, and 0 otherwise.
	WindowTokens uint32
}

// Arrangement is the order of the dimensions of a contiguous tensor.
type Arrangement uint32

// The usual arrangements, from the outermost dimension. Strided is none of them: Layer.Strides has the places.
const (
	Strided            Arrangement = 0
	PairBlockTokenHead Arrangement = C.FERRY_KV_PAIR_BLOCK_TOKEN_HEAD // all keys, then all values; NHD
	PairBlockHeadToken Arrangement = C.FERRY_KV_PAIR_BLOCK_HEAD_TOKEN // all keys, then all values; HND
	BlockPairTokenHead Arrangement = C.FERRY_KV_BLOCK_PAIR_TOKEN_HEAD // a block's keys, then its values; NHD
	BlockPairHeadToken Arrangement = C.FERRY_KV_BLOCK_PAIR_HEAD_TOKEN // a block's keys, then its values; HND
	BlockHeadPairToken Arrangement = C.FERRY_KV_BLOCK_HEAD_PAIR_TOKEN // a head's keys, then its values
)

// Strides are the bytes from one block, pair, head, token or element of a layer to the next.
type Strides struct{ Block, Pair, Head, Token, Element uint64 }

// A Layer is one tensor of the cache. ferry_kv_layer has the meaning of each field.
type Layer struct {
	// Name is the same on all ranks and both sides.
	Name string
	// Group is the index of the layer's group, Stage the pipeline stage that holds the layer.
	Group, Stage uint32
	// Heads are the KV heads of the whole model.
	Heads uint32
	// Pairs is 2 for keys and values, and 1 if there is one kind of row.
	Pairs uint32
	// Elements are those of one row, of ElementBytes each.
	Elements, ElementBytes uint32
	// Address is that of block 0 in this process, as Memory.Address has it; 0 for a layer of another stage.
	Address uint64
	// Blocks is how many blocks the tensor has.
	Blocks      uint64
	Arrangement Arrangement
	// Strides are used only if Arrangement is Strided.
	Strides Strides
	tensor  *Tensor // of LayerOf
	order   string
}

// A Tensor is a tensor as frameworks describe it, in registered memory.
type Tensor struct {
	// Address is that of the first element, as Memory.Address has it.
	Address      uint64
	ElementBytes uint32
	// Shape has the sizes of the dimensions, Strides the bytes from one element of each dimension to the next. nil
	// Strides mean that the tensor is contiguous.
	Shape, Strides []uint64
}

// LayerOf returns the layer that lies in a tensor. The order names the dimensions of Shape from the outermost:
// "block pair token head element"; pair, token and head may be missing. The caller may set Group, Stage, and Heads,
// which otherwise are those of the tensor times TPSize. NewLayout compares the tensor with the rest of the description.
func LayerOf(name, order string, tensor Tensor) Layer {
	return Layer{Name: name, order: order, tensor: &tensor}
}

// A Description says what one rank holds. ferry_kv_layout_desc has the meaning of each field.
type Description struct {
	// The four texts that are equal on both sides. Cache is the data type with its scales.
	Model, Revision, Cache, RoPE string
	// The rank and the number of ranks for tensor, pipeline and prefill context parallelism. A size of 0 means 1.
	TPRank, TPSize, PPRank, PPSize, PCPRank, PCPSize uint32
	// DCPSize is the size of decode context parallelism; context parallel ranks take turns of TurnTokens tokens. 0
	// means 1.
	DCPSize, TurnTokens uint32
	Groups              []Group
	// Layers are those of all stages, in the order of computation.
	Layers []Layer
}

// A Layout is what one rank holds of a paged KV cache. It never changes.
type Layout struct {
	handle *C.ferry_kv_layout
	info   LayoutInfo
}

// LayoutInfo has numbers of a layout.
type LayoutInfo struct {
	// Rank is the number of this rank, of Ranks in the instance.
	Rank, Ranks int
	// Groups and Layers are how many there are, the layers of all stages.
	Groups, Layers int
}

// NewLayout makes a layout from its description. The memory that it names is not touched.
func NewLayout(from *Description) (*Layout, error) {
	const op = "layout"
	if from == nil {
		return nil, invalid(op, "description is nil")
	}
	var m arguments
	defer m.free()
	desc, err := m.description(op, from)
	if err != nil {
		return nil, err
	}
	var handle *C.ferry_kv_layout
	c := newCError()
	if err := failure(op, C.ferry_kv_layout_new(desc, &handle, &c), &c); err != nil {
		return nil, err
	}
	return newLayout(handle), nil
}

// LoadLayout makes a layout from the bytes of Export. The bytes need not be trusted.
func LoadLayout(bytes []byte) (*Layout, error) {
	var handle *C.ferry_kv_layout
	c := newCError()
	// The pointer is never NULL: C reports NULL differently from bytes that are no layout.
	first := unsafe.Pointer(unsafe.SliceData(append(bytes[:len(bytes):len(bytes)], 0)))
	err := failure("layout", C.ferry_kv_layout_import(first, C.size_t(len(bytes)), &handle, &c), &c)
	if err != nil {
		return nil, err
	}
	return newLayout(handle), nil
}

func newLayout(handle *C.ferry_kv_layout) *Layout {
	info := C.ferry_kv_layout_info{struct_size: C.sizeof_ferry_kv_layout_info}
	C.ferry_kv_layout_get_info(handle, &info, nil) // cannot fail
	l := &Layout{handle, LayoutInfo{int(info.rank), int(info.ranks), int(info.group_count), int(info.layer_count)}}
	runtime.AddCleanup(l, func(handle *C.ferry_kv_layout) { C.ferry_kv_layout_free(handle) }, handle)
	return l
}

// Info returns the layout's numbers.
func (l *Layout) Info() LayoutInfo { return l.info }

// Export returns the layout as bytes, for the other ranks: at most 64 KiB.
func (l *Layout) Export() ([]byte, error) {
	defer runtime.KeepAlive(l)
	return bridge.Bytes("export", func(buffer unsafe.Pointer, capacity uintptr, length *uintptr, c unsafe.Pointer) int32 {
		var count C.size_t
		status := C.ferry_kv_layout_export(l.c(), buffer, C.size_t(capacity), &count, (*C.ferry_error)(c))
		*length = uintptr(count)
		return int32(status)
	})
}

// c returns the layout for C; NULL for a nil Layout, which C reports as the wrong argument.
func (l *Layout) c() *C.ferry_kv_layout {
	if l == nil {
		return nil
	}
	return l.handle
}

// arguments keep what a call of C borrows: pinned memory of Go, and texts of C.
type arguments struct {
	pinner runtime.Pinner
	texts  []unsafe.Pointer
}

func (m *arguments) free() {
	m.pinner.Unpin()
	for _, text := range m.texts {
		C.free(text)
	}
}

// pinned returns the first element of a slice, which does not move until free; nil for an empty slice.
func pinned[T any](m *arguments, slice []T) *T {
	if len(slice) == 0 {
		return nil
	}
	m.pinner.Pin(&slice[0])
	return &slice[0]
}

func (m *arguments) text(op, name, text string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 { // C would see it end there
		return nil, invalid(op, "%s has a zero", name)
	}
	c := C.CString(text)
	m.texts = append(m.texts, unsafe.Pointer(c))
	return c, nil
}

func (m *arguments) description(op string, from *Description) (*C.ferry_kv_layout_desc, error) {
	if len(from.Groups) == 0 || len(from.Layers) == 0 {
		return nil, invalid(op, "Groups has %d and Layers %d; set both: each layer belongs to a group", len(from.Groups), len(from.Layers))
	}
	groups := make([]C.ferry_kv_group, len(from.Groups))
	for i, g := range from.Groups {
		switch {
		case g.Kind == 0:
			return nil, invalid(op, "Groups[%d].Kind is 0; set it to GroupFull, GroupWindow, GroupLatent or GroupState", i)
		case g.BlockTokens == 0:
			return nil, invalid(op, "Groups[%d].BlockTokens is 0; set it to the tokens in a block, or 1 for a GroupState", i)
		}
		groups[i] = C.ferry_kv_group{C.sizeof_ferry_kv_group, C.uint32_t(g.Kind), C.uint32_t(g.BlockTokens), C.uint32_t(g.WindowTokens)}
	}
	size := func(ranks uint32) C.uint32_t { return C.uint32_t(max(ranks, 1)) }
	desc := &C.ferry_kv_layout_desc{
		struct_size: C.sizeof_ferry_kv_layout_desc,
		tp_rank:     C.uint32_t(from.TPRank), tp_size: size(from.TPSize),
		pp_rank: C.uint32_t(from.PPRank), pp_size: size(from.PPSize),
		pcp_rank: C.uint32_t(from.PCPRank), pcp_size: size(from.PCPSize),
		dcp_size: size(from.DCPSize), turn_tokens: size(from.TurnTokens),
		groups: pinned(m, groups), group_count: C.uint64_t(len(groups)),
	}
	for _, text := range []struct {
		name, from string
		to         **C.char
	}{
		{"Model", from.Model, &desc.model}, {"Revision", from.Revision, &desc.revision},
		{"Cache", from.Cache, &desc.cache}, {"RoPE", from.RoPE, &desc.rope},
	} {
		var err error
		if *text.to, err = m.text(op, text.name, text.from); err != nil {
			return nil, err
		}
	}
	layers := make([]C.ferry_kv_layer, len(from.Layers))
	for i := range layers {
		if err := m.layer(op, fmt.Sprintf("Layers[%d]", i), &from.Layers[i], desc, &layers[i]); err != nil {
			return nil, err
		}
	}
	desc.layers, desc.layer_count = pinned(m, layers), C.uint64_t(len(layers))
	return desc, nil
}

func (m *arguments) layer(op, name string, from *Layer, desc *C.ferry_kv_layout_desc, to *C.ferry_kv_layer) error {
	text, err := m.text(op, name+".Name", from.Name)
	if err != nil {
		return err
	}
	*to = C.ferry_kv_layer{
		struct_size: C.sizeof_ferry_kv_layer, group: C.uint32_t(from.Group), name: text, stage: C.uint32_t(from.Stage),
		heads: C.uint32_t(from.Heads), pairs: C.uint32_t(from.Pairs),
		elements: C.uint32_t(from.Elements), element_bytes: C.uint32_t(from.ElementBytes),
		address: C.uint64_t(from.Address), blocks: C.uint64_t(from.Blocks),
		block_stride: C.uint64_t(from.Strides.Block), pair_stride: C.uint64_t(from.Strides.Pair),
		head_stride: C.uint64_t(from.Strides.Head), token_stride: C.uint64_t(from.Strides.Token),
		element_stride: C.uint64_t(from.Strides.Element),
	}
	switch {
	case from.tensor != nil:
		return m.place(op, name, from, desc, to)
	case from.ElementBytes == 0:
		return invalid(op, "%s.ElementBytes is 0; set it to the bytes of one element", name)
	case from.Address != 0 && from.Arrangement > BlockHeadPairToken:
		return invalid(op, "%s.Arrangement is %v; set it to one from PairBlockTokenHead to BlockHeadPairToken", name, from.Arrangement)
	case from.Address != 0 && from.Arrangement == Strided && from.Strides == (Strides{}):
		return invalid(op, "%s has neither an Arrangement nor Strides; set one, or make the layer with LayerOf", name)
	}
	// Without an address the strides are not used. ferry_kv_layout_new reports a wrong group, with its layer.
	if from.Address == 0 || from.Arrangement == Strided || uint64(from.Group) >= uint64(desc.group_count) {
		return nil
	}
	c := newCError()
	if status := C.ferry_kv_layer_arrange(desc, C.uint32_t(from.Arrangement), to, &c); status < 0 {
		return invalid(op, "%s: %s", name, C.GoString(&c.message[0]))
	}
	return nil
}

// place places a layer in its tensor.
func (m *arguments) place(op, name string, from *Layer, desc *C.ferry_kv_layout_desc, to *C.ferry_kv_layer) error {
	order, err := m.text(op, name+"'s order", from.order)
	if err != nil {
		return err
	}
	tensor, c := from.tensor, newCError()
	if tensor.ElementBytes == 0 {
		return invalid(op, "%s: the tensor's ElementBytes is 0; set it to the bytes of one element", name)
	}
	if tensor.Strides != nil && len(tensor.Strides) != len(tensor.Shape) {
		return invalid(op, "%s: the tensor has %d strides and %d dimensions", name, len(tensor.Strides), len(tensor.Shape))
	}
	status := C.ferry_kv_layer_of(desc, &C.ferry_kv_tensor{
		struct_size: C.sizeof_ferry_kv_tensor, element_bytes: C.uint32_t(tensor.ElementBytes),
		address: C.uint64_t(tensor.Address), order: order, dimension_count: C.uint64_t(len(tensor.Shape)),
		shape:   (*C.uint64_t)(unsafe.Pointer(pinned(m, tensor.Shape))),
		strides: (*C.uint64_t)(unsafe.Pointer(pinned(m, tensor.Strides))),
	}, to, &c)
	if status < 0 {
		return invalid(op, "%s: %s", name, C.GoString(&c.message[0]))
	}
	return nil
}

func newCError() C.ferry_error { return C.ferry_error{struct_size: C.sizeof_ferry_error} }

func failure(op string, status C.ferry_status, c *C.ferry_error) error {
	return bridge.Failure(op, int32(status), unsafe.Pointer(c))
}

func invalid(op, format string, arguments ...any) *ferry.Error {
	return &ferry.Error{Op: op, Status: ferry.ErrInvalid, Message: fmt.Sprintf(format, arguments...), RequestIndex: -1}
}
