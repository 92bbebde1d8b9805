package kv_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"ferry"
	"ferry/kv"
)

// A host is a side with memory of Go, which no engine knows.
type host struct {
	*side
	memory []uint32
	layout *kv.Layout
}

func newHost(t testing.TB, of shape, rank int) *host {
	s := newSide(of, rank)
	h := &host{side: s, memory: make([]uint32, s.size)}
	h.layout = s.layout(t, h.address())
	return h
}

func (h *host) address() uint64 { return uint64(uintptr(unsafe.Pointer(&h.memory[0]))) }

// pairs has both sides' lists of each group of the source's lists.
func pairs(source, target []kv.BlockList) (both []kv.BlockPairs) {
	for i := range source {
		both = append(both, kv.BlockPairs{Source: source[i], Target: target[i]})
	}
	return both
}

// copied applies the moves; returns the bytes.
func copied(t testing.TB, moves []kv.Move, source, target *host) (sum uint64) {
	t.Helper()
	for _, move := range moves {
		move.Pieces(func(from, to, bytes uint64) {
			if from%4 != 0 || to%4 != 0 || bytes%4 != 0 {
				t.Fatal("a piece that is no elements")
			}
			from, to = (from-source.address())/4, (to-target.address())/4
			copy(target.memory[to:to+bytes/4], source.memory[from:from+bytes/4])
			sum += bytes
		})
	}
	return sum
}

func reshard(t *testing.T, from, to shape, first, end int) {
	t.Helper()
	var sources []*host
	for rank := range from.tp {
		source := newHost(t, from, rank)
		for layer := range model {
			source.write(source.memory, layer, 0, tokens)
		}
		sources = append(sources, source)
	}
	for rank := range to.tp {
		target := newHost(t, to, rank)
		plan, err := kv.NewPlan(sources[0].layout, target.layout)
		must(t, err)
		senders, err := plan.Sources(uint32(rank))
		must(t, err)
		for _, sender := range senders {
			source := sources[sender]
			part := &kv.Part{FirstToken: uint64(first), EndToken: uint64(end), Blocks: pairs(source.lists(), target.lists())}
			moves, err := plan.Lower(source.layout, target.layout, part)
			must(t, err)
			copied(t, moves, source, target)
		}
		if !slices.Equal(target.memory, target.expected(first, end)) {
			t.Errorf("rank %d of %+v, from %+v", rank, to, from)
		}
	}
}

func TestMovesEqualTheModel(t *testing.T) {
	for from := kv.PairBlockTokenHead; from <= kv.BlockHeadPairToken; from++ {
		for to := kv.PairBlockTokenHead; to <= kv.BlockHeadPairToken; to++ {
			reshard(t, shape{2, 8, from, 0}, shape{1, 12, to, 0}, 0, tokens)
			reshard(t, shape{1, 16, from, 0}, shape{4, 4, to, 3}, 0, tokens)
		}
	}
	reshard(t, shape{4, 8, kv.BlockPairTokenHead, 1}, shape{2, 8, kv.BlockPairTokenHead, 2}, 0, tokens)
	reshard(t, shape{2, 8, kv.BlockPairHeadToken, 0}, shape{1, 12, kv.PairBlockTokenHead, 0}, 17, tokens)
}

func TestAPartOfTheLayers(t *testing.T) {
	of := shape{1, 8, kv.BlockPairHeadToken, 0}
	source, target := newHost(t, of, 0), newHost(t, of, 0)
	for layer := range model {
		source.write(source.memory, layer, 0, tokens)
	}
	plan, err := kv.NewPlan(source.layout, target.layout)
	must(t, err)
	expected := make([]uint32, target.size)
	part := &kv.Part{EndToken: tokens, Blocks: pairs(source.lists(), target.lists())}
	for layer := range model {
		part.FirstLayer, part.EndLayer = uint32(layer), uint32(layer+1)
		moves, err := plan.Lower(source.layout, target.layout, part)
		must(t, err)
		for _, move := range moves {
			if move.Layer != uint32(layer) {
				t.Fatal(move.Layer)
			}
		}
		copied(t, moves, source, target)
		target.write(expected, layer, 0, tokens)
		if !slices.Equal(target.memory, expected) {
			t.Fatalf("layer %d", layer)
		}
	}
	part.FirstLayer, part.EndLayer = 1, 0 // all from the second on
	moves, err := plan.Lower(source.layout, target.layout, part)
	must(t, err)
	layers := map[uint32]bool{}
	for _, move := range moves {
		layers[move.Layer] = true
	}
	if len(layers) != 2 || layers[0] {
		t.Fatal(layers)
	}
}

func TestAPlanSaysWhoSendsToWhom(t *testing.T) {
	source, target := newHost(t, shape{4, 8, kv.BlockPairHeadToken, 0}, 0), newHost(t, shape{2, 8, kv.BlockPairHeadToken, 0}, 1)
	plan, err := kv.NewPlan(source.layout, target.layout)
	must(t, err)
	// Heads come from two ranks; latents, which all ranks have, come from any.
	sources, err := plan.Sources(0)
	if err != nil || !slices.Equal(sources[:2], []uint32{0, 1}) {
		t.Fatal(sources, err)
	}
	targets, err := plan.Targets(3)
	if err != nil || !slices.Contains(targets, 1) {
		t.Fatal(targets, err)
	}
	if _, err := plan.Sources(2); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := plan.Targets(4); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
	page, err := plan.Explain()
	if err != nil || !strings.Contains(page, "source: 4 ranks") {
		t.Fatal(page, err)
	}
}

func TestALayoutSurvivesItsBytes(t *testing.T) {
	h := newHost(t, shape{2, 8, kv.BlockPairHeadToken, 0}, 1)
	if info := h.layout.Info(); info != (kv.LayoutInfo{Rank: 1, Ranks: 2, Groups: 3, Layers: 3}) {
		t.Fatal(info)
	}
	exported, err := h.layout.Export()
	must(t, err)
	before := slices.Clone(exported)
	again, err := kv.LoadLayout(exported)
	must(t, err)
	if !bytes.Equal(before, exported) || again.Info() != h.layout.Info() {
		t.Fatal(again.Info())
	}
	if twice, err := again.Export(); err != nil || !bytes.Equal(twice, exported) {
		t.Fatal(err)
	}
	for _, wrong := range [][]byte{nil, {}, exported[:len(exported)-1], []byte("no layout")} {
		if _, err := kv.LoadLayout(wrong); !errors.Is(err, ferry.ErrInvalid) {
			t.Fatal(len(wrong), err)
		}
	}
}

// Each change of a field makes another layout.
func TestEveryFieldOfADescriptionArrives(t *testing.T) {
	s := newSide(shape{4, 8, kv.BlockPairHeadToken, 0}, 3)
	seen := map[string]bool{}
	export := func(change func(d *kv.Description)) string {
		d := s.describe(4096)
		d.PPSize, d.PPRank, d.PCPSize, d.PCPRank, d.TurnTokens = 2, 1, 2, 1, 4
		for i := range d.Layers {
			d.Layers[i].Stage = 1
		}
		change(d)
		layout, err := kv.NewLayout(d)
		must(t, err)
		exported, err := layout.Export()
		must(t, err)
		return string(exported)
	}
	seen[export(func(*kv.Description) {})] = true
	for i, change := range []func(d *kv.Description){
		func(d *kv.Description) { d.Model = "other" },
		func(d *kv.Description) { d.Revision = "other" },
		func(d *kv.Description) { d.Cache = "other" },
		func(d *kv.Description) { d.RoPE = "other" },
		func(d *kv.Description) { d.TPRank = 2 },
		func(d *kv.Description) { d.PCPRank = 0 },
		func(d *kv.Description) { d.PCPRank, d.PCPSize = 0, 0 },
		func(d *kv.Description) { d.TurnTokens = 2 },
		func(d *kv.Description) { d.TurnTokens = 0 },
		func(d *kv.Description) {
			d.PPRank, d.Layers[0].Stage, d.Layers[1].Stage, d.Layers[2].Stage = 0, 0, 0, 0
		},
		func(d *kv.Description) { d.Layers[0].Heads, d.Layers[1].Heads = 1, 1 },
		func(d *kv.Description) { d.Layers[0].Heads, d.Layers[1].Heads, d.DCPSize = 1, 1, 4 },
		func(d *kv.Description) { d.Groups[1].WindowTokens = 99 },
		func(d *kv.Description) { d.Groups[2].BlockTokens = 4 },
		func(d *kv.Description) { d.Groups[2].Kind = kv.GroupFull },
		func(d *kv.Description) { d.Layers[0].Name = "other" },
		func(d *kv.Description) { d.Layers[0].Elements = 3 },
		func(d *kv.Description) { d.Layers[0].ElementBytes = 2 },
		func(d *kv.Description) { d.Layers[0].Blocks = 3 },
		func(d *kv.Description) { d.Layers[0].Pairs = 1 },
		func(d *kv.Description) { d.Layers[0].Arrangement = kv.PairBlockTokenHead },
		func(d *kv.Description) { d.Layers[0].Address++ },
	} {
		if exported := export(change); seen[exported] {
			t.Errorf("change %d makes no other layout", i)
		} else {
			seen[exported] = true
		}
	}
}

// A layer in a tensor is the layer of the same arrangement, whose strides ferry computes.
func TestALayerTakesItsPlaceFromATensor(t *testing.T) {
	export := func(place func(of *kv.Layer)) string {
		d := &kv.Description{TPSize: 2, Groups: []kv.Group{{Kind: kv.GroupFull, BlockTokens: 16}},
			Layers: []kv.Layer{{Name: "layers.0", Heads: 4, Pairs: 2, Elements: 8, ElementBytes: 2, Address: 4096, Blocks: 5}}}
		place(&d.Layers[0])
		layout, err := kv.NewLayout(d)
		must(t, err)
		exported, err := layout.Export()
		must(t, err)
		return string(exported)
	}
	of := func(order string, tensor kv.Tensor) func(*kv.Layer) {
		tensor.Address, tensor.ElementBytes = 4096, 2
		return func(layer *kv.Layer) { *layer = kv.LayerOf(layer.Name, order, tensor) }
	}
	expected := export(func(layer *kv.Layer) { layer.Arrangement = kv.PairBlockHeadToken })
	for _, it := range []struct {
		order  string
		tensor kv.Tensor
	}{
		{"pair block head token element", kv.Tensor{Shape: []uint64{2, 5, 2, 16, 8}}},
		{"block pair head token element", kv.Tensor{Shape: []uint64{5, 2, 2, 16, 8}, Strides: []uint64{512, 2560, 256, 16, 2}}},
	} {
		if export(of(it.order, it.tensor)) != expected {
			t.Errorf("%+v is elsewhere", it)
		}
	}
	replicated := func(layer *kv.Layer) {
		of("pair block head token element", kv.Tensor{Shape: []uint64{2, 5, 1, 16, 8}})(layer)
		layer.Heads = 1
	}
	if export(replicated) != export(func(layer *kv.Layer) { layer.Heads, layer.Arrangement = 1, kv.PairBlockHeadToken }) {
		t.Error("the model's heads are not the caller's")
	}
	layer := kv.LayerOf("layers.0", "block token element", kv.Tensor{Address: 1, ElementBytes: 2, Shape: []uint64{5, 16, 8}, Strides: []uint64{256}})
	_, err := kv.NewLayout(&kv.Description{Groups: []kv.Group{{Kind: kv.GroupLatent, BlockTokens: 16}}, Layers: []kv.Layer{layer}})
	if err == nil || !strings.Contains(err.Error(), "Layers[0]: the tensor has 1 strides and 3 dimensions") {
		t.Error(err)
	}
}

func TestWhatIsWrongWithADescriptionIsNamed(t *testing.T) {
	s := newSide(shape{1, 8, kv.BlockPairHeadToken, 0}, 0)
	for _, it := range []struct {
		part   string
		change func(d *kv.Description)
	}{
		{"Layers[1].Name has a zero", func(d *kv.Description) { d.Layers[1].Name = "a\x00b" }},
		{"Model has a zero", func(d *kv.Description) { d.Model = "\x00" }},
		{"RoPE has a zero", func(d *kv.Description) { d.RoPE = "r\x00" }},
		{"Layers[2].Arrangement is 9; set it to one from", func(d *kv.Description) { d.Layers[2].Arrangement = 9 }},
		{"model.layers.2.mla", func(d *kv.Description) { d.Layers[2].Group = 3 }},
		{"model.layers.0.attn", func(d *kv.Description) {
			d.Layers[0].Arrangement, d.Layers[0].Strides = kv.Strided, kv.Strides{8, 8, 8, 8, 4}
		}},
		{"Groups has 0 and Layers 3", func(d *kv.Description) { d.Groups = nil }},
		{"Groups has 3 and Layers 0", func(d *kv.Description) { d.Layers = nil }},
	} {
		d := s.describe(4096)
		it.change(d)
		layout, err := kv.NewLayout(d)
		if layout != nil || !errors.Is(err, ferry.ErrInvalid) || !strings.Contains(err.Error(), it.part) {
			t.Errorf("%q: %v", it.part, err)
		}
	}
	if _, err := kv.NewLayout(nil); !errors.Is(err, ferry.ErrInvalid) {
		t.Error(err)
	}
}

func TestLayersOfOtherStagesNeedNoMemory(t *testing.T) {
	d := newSide(shape{1, 8, kv.BlockPairHeadToken, 0}, 0).describe(4096)
	d.PPSize, d.Layers[2].Stage, d.Layers[2].Address, d.Layers[2].Arrangement = 2, 1, 0, 99
	_, err := kv.NewLayout(d)
	must(t, err)
	d.Layers[1].Address = 0
	if _, err := kv.NewLayout(d); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	of := shape{1, 8, kv.BlockPairHeadToken, 0}
	source, target := newHost(t, of, 0), newHost(t, of, 0)
	d := source.describe(4096)
	d.Cache = "fp8"
	other, err := kv.NewLayout(d)
	must(t, err)
	if _, err := kv.NewPlan(source.layout, other); !errors.Is(err, ferry.ErrInvalid) || !strings.Contains(err.Error(), "fp8") {
		t.Fatal(err)
	}
	d = source.describe(4096)
	d.Groups[1].WindowTokens++
	other, err = kv.NewLayout(d)
	must(t, err)
	if _, err := kv.NewPlan(source.layout, other); !errors.Is(err, ferry.ErrUnsupported) {
		t.Fatal(err)
	}
	if _, err := kv.NewPlan(nil, other); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
	plan, err := kv.NewPlan(source.layout, target.layout)
	must(t, err)
	lists := source.lists()
	for i, part := range []*kv.Part{
		nil,
		{EndToken: tokens, Blocks: pairs(lists[:2], lists)},
		{EndToken: tokens + 8, Blocks: pairs(lists, lists)},
		{FirstToken: 1, EndToken: 0, Blocks: pairs(lists, lists)},
	} {
		if _, err := plan.Lower(source.layout, target.layout, part); !errors.Is(err, ferry.ErrInvalid) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// Layouts and plans are freed when nothing refers to them, and not before; moves are freed at once. Each takes hundreds
// of KiB of C's memory here.
func TestTheCollectorFreesWhatNobodyHas(t *testing.T) {
	d := newSide(shape{1, 8, kv.BlockPairHeadToken, 0}, 0).describe(4096)
	for i := range 1021 {
		layer := d.Layers[0]
		layer.Name = fmt.Sprintf("model.layers.%d.attn", i+3)
		layer.Address += uint64(i+3) << 20
		d.Layers = append(d.Layers, layer)
	}
	made := func() *kv.Plan {
		layout, err := kv.NewLayout(d)
		must(t, err)
		plan, err := kv.NewPlan(layout, layout)
		must(t, err)
		first := make([]kv.BlockPairs, len(model))
		for i := range first {
			first[i].Source.IDs, first[i].Target.IDs = []uint32{0}, []uint32{0}
		}
		for range 4 {
			moves, err := plan.Lower(layout, layout, &kv.Part{EndToken: 8, Blocks: first})
			if err != nil || len(moves) != len(d.Layers) {
				t.Fatal(len(moves), err)
			}
		}
		return plan
	}
	const rounds = 120
	kept, least := made(), resident(t)
	for i := range rounds {
		made()
		if i%10 == 0 {
			runtime.GC()
		}
		if i == 20 {
			least = resident(t)
		}
	}
	if grown := resident(t) - least; grown > 8<<20 {
		t.Errorf("%d MiB more after %d layouts and plans", grown>>20, rounds)
	}
	if sources, err := kept.Sources(0); err != nil || len(sources) != 1 {
		t.Fatal(sources, err)
	}
}

// resident is the memory of this process that is in use.
func resident(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	var size, pages int
	_, err = fmt.Sscan(string(text), &size, &pages)
	must(t, err)
	return pages * os.Getpagesize()
}
