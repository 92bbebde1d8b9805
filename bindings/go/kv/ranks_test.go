package kv_test

import (
	"context"
	"slices"
	"testing"
	"time"
	"unsafe"

	"ferry"
	"ferry/kv"
)

// The tests' model: three layers, each the only one of its group. Every element encodes its layer, pair, head, token and
// place, and places are computed here, not by ferry.
const (
	elements = 4
	window   = 20
	blocks   = 24
	tokens   = 75
)

type modelLayer struct {
	name         string
	kind         kv.GroupKind
	pairs, heads int
}

var model = []modelLayer{
	{"model.layers.0.attn", kv.GroupFull, 2, 4},
	{"model.layers.1.attn", kv.GroupWindow, 2, 4},
	{"model.layers.2.mla", kv.GroupLatent, 1, 1},
}

// A shape is how one instance divides the model. With padding after each row the layout has strides of its own.
type shape struct {
	tp, block   int
	arrangement kv.Arrangement
	padding     int
}

// A place is the place of a row in a layer.
type place struct{ block, pair, head, token int }

// A side is what one rank holds: the model's part, and the blocks of the sequence.
type side struct {
	shape
	rank   int
	starts []int // of the layers, in elements
	size   int
	ids    [][]uint32
}

func newSide(of shape, rank int) *side {
	s := &side{shape: of, rank: rank}
	for l, layer := range model {
		s.starts = append(s.starts, s.size)
		s.size += blocks * layer.pairs * s.heads(l) * of.block * (elements + of.padding)
		list := make([]uint32, blocks)
		for i := range list { // scattered
			list[i] = uint32((i*7 + of.tp + rank + l) % blocks)
		}
		s.ids = append(s.ids, list)
	}
	return s
}

func (s *side) heads(layer int) int { return max(model[layer].heads/s.tp, 1) }

// at is the index of a row's first element.
func (s *side) at(layer int, p place) int {
	pairs, heads, tokens := model[layer].pairs, s.heads(layer), s.block
	row := 0
	switch s.arrangement {
	case kv.PairBlockTokenHead:
		row = ((p.pair*blocks+p.block)*tokens+p.token)*heads + p.head
	case kv.PairBlockHeadToken:
		row = ((p.pair*blocks+p.block)*heads+p.head)*tokens + p.token
	case kv.BlockPairTokenHead:
		row = ((p.block*pairs+p.pair)*tokens+p.token)*heads + p.head
	case kv.BlockPairHeadToken:
		row = ((p.block*pairs+p.pair)*heads+p.head)*tokens + p.token
	case kv.BlockHeadPairToken:
		row = ((p.block*heads+p.head)*pairs+p.pair)*tokens + p.token
	}
	return s.starts[layer] + row*(elements+s.padding)
}

// write writes the elements of tokens first to end in one layer. A window has only its last tokens.
func (s *side) write(memory []uint32, layer, first, end int) {
	if model[layer].kind == kv.GroupWindow {
		first = max(first, end-window)
	}
	head0 := s.rank * s.heads(layer)
	if model[layer].heads < s.tp {
		head0 = 0
	}
	for token := first; token < end; token++ {
		for pair := range model[layer].pairs {
			for head := range s.heads(layer) {
				block := int(s.ids[layer][token/s.block])
				at := s.at(layer, place{block, pair, head, token % s.block})
				for element := range elements {
					which := ((token*8+head0+head)*2+pair)*len(model) + layer
					memory[at+element] = uint32(which*8 + element + 1)
				}
			}
		}
	}
}

// expected is the memory that has these tokens, and zeros elsewhere.
func (s *side) expected(first, end int) []uint32 {
	memory := make([]uint32, s.size)
	for layer := range model {
		s.write(memory, layer, first, end)
	}
	return memory
}

func (s *side) describe(address uint64) *kv.Description {
	desc := &kv.Description{Model: "llama", Revision: "main", Cache: "u32", RoPE: "default",
		TPRank: uint32(s.rank), TPSize: uint32(s.tp)}
	for l, of := range model {
		group := kv.Group{Kind: of.kind, BlockTokens: uint32(s.block)}
		if of.kind == kv.GroupWindow {
			group.WindowTokens = window
		}
		desc.Groups = append(desc.Groups, group)
		layer := kv.Layer{Name: of.name, Group: uint32(l), Heads: uint32(of.heads), Pairs: uint32(of.pairs),
			Elements: elements, ElementBytes: 4, Address: address + uint64(4*s.starts[l]), Blocks: blocks,
			Arrangement: s.arrangement}
		if s.padding != 0 {
			stride := func(p place) uint64 { return uint64(4 * (s.at(l, p) - s.starts[l])) }
			layer.Arrangement = kv.Strided
			layer.Strides = kv.Strides{Block: stride(place{block: 1}), Pair: stride(place{pair: 1}),
				Head: stride(place{head: 1}), Token: stride(place{token: 1}), Element: 4}
		}
		desc.Layers = append(desc.Layers, layer)
	}
	return desc
}

func (s *side) layout(t testing.TB, address uint64) *kv.Layout {
	t.Helper()
	layout, err := kv.NewLayout(s.describe(address))
	must(t, err)
	return layout
}

// lists are the blocks of the sequence, without those that the window has left behind.
func (s *side) lists() []kv.BlockList {
	var lists []kv.BlockList
	for l, layer := range model {
		first := 0
		if layer.kind == kv.GroupWindow {
			first = (tokens - window) / s.block
		}
		lists = append(lists, kv.BlockList{IDs: s.ids[l][first : (tokens+s.block-1)/s.block], FirstToken: uint64(first * s.block)})
	}
	return lists
}

// A rank is a side with an engine, and a cache over it.
type rank struct {
	*side
	engine *ferry.Engine
	memory *ferry.Memory
	cache  *kv.Cache
	words  []uint32
}

// open opens a rank. Peers may be silent for a minute: a busy machine makes them so.
func open(t testing.TB, of shape, number int) *rank {
	return openWith(t, of, number, kv.CacheOptions{Silence: time.Minute})
}

func openWith(t testing.TB, of shape, number int, options kv.CacheOptions) *rank {
	t.Helper()
	r := &rank{side: newSide(of, number)}
	var err error
	r.engine, err = ferry.Open(nil)
	must(t, err)
	t.Cleanup(func() { must(t, r.engine.Close()) })
	r.memory, err = r.engine.Alloc(4*r.size, nil)
	must(t, err)
	r.words = unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(r.memory.Bytes()))), r.size)
	layout := r.layout(t, r.memory.Address())
	r.cache, err = kv.OpenCache(r.engine, layout, []*ferry.Memory{r.memory}, &options)
	must(t, err)
	t.Cleanup(func() { must(t, r.cache.Close()) })
	return r
}

func instance(t testing.TB, of shape) []*rank {
	var ranks []*rank
	for number := range of.tp {
		ranks = append(ranks, open(t, of, number))
	}
	return ranks
}

func (r *rank) connect(t testing.TB, producers ...*rank) []ferry.Peer {
	t.Helper()
	var peers []ferry.Peer
	for _, producer := range producers {
		peer, err := r.engine.Connect(soon(t), producer.engine.Address())
		must(t, err)
		peers = append(peers, peer)
	}
	return peers
}

func (r *rank) offer(t testing.TB, id kv.ID, options *kv.OfferOptions) {
	t.Helper()
	must(t, r.cache.Offer(id, r.lists(), options))
}

// finish computes the whole sequence.
func (r *rank) finish(t testing.TB, id kv.ID) {
	t.Helper()
	for layer := range model {
		r.write(r.words, layer, 0, tokens)
	}
	must(t, r.cache.Ready(id, tokens))
	must(t, r.cache.Seal(id, tokens))
}

func (r *rank) take(t testing.TB, ctx context.Context, id kv.ID, peers []ferry.Peer, options *kv.TakeOptions) {
	t.Helper()
	must(t, r.cache.Take(ctx, id, peers, r.lists(), tokens, options))
}

func (r *rank) next(t testing.TB) kv.Event {
	t.Helper()
	event, err := r.cache.Next(soon(t))
	must(t, err)
	return event
}

// end expects the terminal event of an ID, after the events of layers.
func (r *rank) end(t testing.TB, id kv.ID, kind kv.EventKind, status ferry.Status) kv.Event {
	t.Helper()
	event := r.next(t)
	for !event.Terminal() {
		event = r.next(t)
	}
	if event.ID != id || event.Kind != kind || event.Status != status || (event.Message == "") != (status == ferry.OK) {
		t.Fatalf("%+v, not %v of %v with %v", event, kind, id, status)
	}
	state, err := r.cache.State(id)
	if err != nil || state.Kind != kv.StateEnded || state.Event != kind {
		t.Fatal(state, err)
	}
	if event, ok, err := r.cache.Poll(); ok || err != nil {
		t.Fatal(event, err)
	}
	return event
}

// holds compares every element with the model's.
func (r *rank) holds(t testing.TB, first, end int) {
	t.Helper()
	if !slices.Equal(r.words, r.expected(first, end)) {
		t.Fatalf("rank %d of %d does not have exactly the tokens %d to %d", r.rank, r.tp, first, end)
	}
}

func newID(t testing.TB) kv.ID {
	t.Helper()
	id, err := kv.NewID()
	must(t, err)
	return id
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// soon returns a context that outlives every test that succeeds.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
