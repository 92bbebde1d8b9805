package ferry_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unsafe"

	"ferry"
	"ferry/kv"
)

// A mistaken is what a program has when it makes one of the likely mistakes: two engines, each with memory and a cache.
type mistaken struct {
	near, far *ferry.Engine
	here      *ferry.Memory
	there     ferry.RegionInfo
	peer      ferry.Peer
	cache     *kv.Cache
	layout    *kv.Layout
	id        kv.ID
}

// describe describes a cache of one layer in the memory at an address: four blocks of 16 tokens, 8192 bytes.
func describe(address uint64) *kv.Description {
	return &kv.Description{
		Model: "m", Groups: []kv.Group{{Kind: kv.GroupFull, BlockTokens: 16}},
		Layers: []kv.Layer{kv.LayerOf("layers.0", "block pair token head element",
			kv.Tensor{Address: address, ElementBytes: 2, Shape: []uint64{4, 2, 16, 4, 8}})},
	}
}

func newMistaken(t *testing.T) *mistaken {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := &mistaken{}
	var err error
	m.near, err = ferry.Open(nil)
	must(err)
	t.Cleanup(func() { m.near.Close() })
	m.far, err = ferry.Open(nil)
	must(err)
	t.Cleanup(func() { m.far.Close() })
	m.here, err = m.near.Alloc(8192, nil)
	must(err)
	_, err = m.far.Alloc(8192, &ferry.RegionOptions{Name: "there"})
	must(err)
	m.peer, err = m.near.Connect(context.Background(), m.far.Address())
	must(err)
	m.there, err = m.peer.Region("there")
	must(err)
	m.layout, err = kv.NewLayout(describe(m.here.Address()))
	must(err)
	m.cache, err = kv.OpenCache(m.near, m.layout, []*ferry.Memory{m.here}, nil)
	must(err)
	m.id, err = kv.NewID()
	must(err)
	return m
}

func (m *mistaken) write(change func(*ferry.Request)) error {
	request := ferry.Request{Local: m.here.Address(), Remote: m.there.Address, Length: 8192, RemoteRegion: m.there.Region}
	change(&request)
	_, err := m.peer.Write(context.Background(), []ferry.Request{request}, nil)
	return err
}

func (m *mistaken) lay(change func(*kv.Description)) error {
	desc := describe(m.here.Address())
	change(desc)
	_, err := kv.NewLayout(desc)
	return err
}

func (m *mistaken) take(ctx context.Context, producers []ferry.Peer, lists []kv.BlockList, tokens uint64) error {
	return m.cache.Take(ctx, m.id, producers, lists, tokens, nil)
}

// Each mistake is answered by a sentence with the argument, in the words of Go, and with what to do instead.
func TestMistakesAreExplained(t *testing.T) {
	m := newMistaken(t)
	ctx, list := context.Background(), []kv.BlockList{{IDs: []uint32{0, 1}}}
	over, cancel := context.WithCancel(ctx)
	cancel()
	past, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	gone, err := ferry.Open(nil)
	if err != nil || gone.Close() != nil {
		t.Fatal(err)
	}
	array := new([64]byte)
	foreign, err := m.far.Connect(ctx, m.near.Address())
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range []struct {
		name  string
		is    error
		says  []string
		error func() error
	}{
		{"nil engine", ferry.ErrInvalid, []string{"engine is nil", "ferry.Open"}, func() error {
			_, err := (*ferry.Engine)(nil).Connect(ctx, m.far.Address())
			return err
		}},
		{"closed engine", ferry.ErrClosed, []string{"the engine is closed"}, func() error { _, err := gone.Alloc(1, nil); return err }},
		{"misspelt setting", ferry.ErrInvalid, []string{"lanez", "lanes"}, func() error { _, err := ferry.Open(ferry.Config{"lanez": "2"}); return err }},
		{"missing port", ferry.ErrInvalid, []string{"address", "write 127.0.0.1:PORT"}, func() error { _, err := m.near.Connect(ctx, "127.0.0.1"); return err }},
		{"Go memory", ferry.ErrInvalid, []string{"address", "Engine.Alloc"}, func() error { _, err := m.near.Register(unsafe.Pointer(array), len(array), nil); return err }},
		{"name of no region", ferry.ErrNotRegistered, []string{"name", "inbox"}, func() error { _, err := m.peer.Region("inbox"); return err }},
		{"no requests", ferry.ErrInvalid, []string{"requests"}, func() error { _, err := m.peer.Write(ctx, nil, nil); return err }},
		{"zero peer", ferry.ErrInvalid, []string{"zero Peer", "Connect"}, func() error { _, err := ferry.Peer{}.Write(ctx, nil, nil); return err }},
		{"no length", ferry.ErrInvalid, []string{"length"}, func() error { return m.write(func(r *ferry.Request) { r.Length = 0 }) }},
		{"beyond local memory", ferry.ErrNotRegistered, []string{"local"}, func() error { return m.write(func(r *ferry.Request) { r.Local++ }) }},
		{"beyond the peer's memory", ferry.ErrInvalid, []string{"remote"}, func() error { return m.write(func(r *ferry.Request) { r.Remote++ }) }},
		{"an offset instead of an address", ferry.ErrNotRegistered, []string{"local"}, func() error { return m.write(func(r *ferry.Request) { r.Local = 4096 }) }},
		{"cancelled context", context.Canceled, []string{"context canceled"}, func() error {
			_, err := m.peer.Write(over, []ferry.Request{{}}, nil)
			return err
		}},
		{"deadline in the past", context.DeadlineExceeded, []string{"context deadline exceeded"}, func() error { _, err := m.near.Connect(past, m.far.Address()); return err }},
		{"lists of unequal lengths", ferry.ErrInvalid, []string{"RemoteBlocks has 1 ids, LocalBlocks has 2"}, func() error {
			_, err := m.peer.SubmitUniform(ferry.Write, &ferry.UniformBlocks{BlockBytes: 64, Count: 1,
				LocalBlocks: ferry.IDs([]int32{1, 2}), RemoteBlocks: ferry.IDs([]int32{1})}, nil)
			return err
		}},
		{"slices of unequal lengths", ferry.ErrInvalid, []string{"RemoteBase has 0 layers, LocalBase has 1"}, func() error {
			_, err := m.peer.SubmitBlocks(ferry.Write, &ferry.Blocks{LocalBase: []uint64{1}}, nil)
			return err
		}},
		{"nil layout", ferry.ErrInvalid, []string{"layout is nil", "NewLayout"}, func() error { _, err := kv.OpenCache(m.far, nil, nil, nil); return err }},
		{"cache of a nil engine", ferry.ErrInvalid, []string{"engine is nil", "ferry.Open"}, func() error { _, err := kv.OpenCache(nil, m.layout, nil, nil); return err }},
		{"cache without memory", ferry.ErrInvalid, []string{"memory", "layers.0"}, func() error { _, err := kv.OpenCache(m.far, m.layout, nil, nil); return err }},
		{"second cache", ferry.ErrBusy, []string{"cache"}, func() error {
			_, err := kv.OpenCache(m.near, m.layout, []*ferry.Memory{m.here}, nil)
			return err
		}},
		{"no groups", ferry.ErrInvalid, []string{"Groups"}, func() error { return m.lay(func(d *kv.Description) { d.Groups = nil }) }},
		{"no kind of group", ferry.ErrInvalid, []string{"Groups[0].Kind", "GroupFull"}, func() error { return m.lay(func(d *kv.Description) { d.Groups[0].Kind = 0 }) }},
		{"no tokens in a block", ferry.ErrInvalid, []string{"Groups[0].BlockTokens"}, func() error { return m.lay(func(d *kv.Description) { d.Groups[0].BlockTokens = 0 }) }},
		{"no layers", ferry.ErrInvalid, []string{"Layers"}, func() error { return m.lay(func(d *kv.Description) { d.Layers = nil }) }},
		{"neither arrangement nor strides", ferry.ErrInvalid, []string{"Layers[0]", "Arrangement", "Strides", "LayerOf"}, func() error {
			return m.lay(func(d *kv.Description) {
				d.Layers[0] = kv.Layer{Name: "layers.0", Heads: 4, Pairs: 2, Elements: 8, ElementBytes: 2, Address: m.here.Address(), Blocks: 4}
			})
		}},
		{"no element size", ferry.ErrInvalid, []string{"Layers[0]", "ElementBytes"}, func() error {
			return m.lay(func(d *kv.Description) {
				d.Layers[0] = kv.LayerOf("layers.0", "block token element", kv.Tensor{Address: 1, Shape: []uint64{4, 16, 8}})
			})
		}},
		{"no order", ferry.ErrInvalid, []string{"Layers[0]", "order", "block pair token head element"}, func() error {
			return m.lay(func(d *kv.Description) {
				d.Layers[0] = kv.LayerOf("layers.0", "", kv.Tensor{Address: 1, ElementBytes: 2, Shape: []uint64{4}})
			})
		}},
		{"shape of another order", ferry.ErrInvalid, []string{"Layers[0]", "4 tokens in a block", "group 0 is 16"}, func() error {
			return m.lay(func(d *kv.Description) {
				d.Layers[0] = kv.LayerOf("layers.0", "block pair head token element", kv.Tensor{Address: 1, ElementBytes: 2, Shape: []uint64{4, 2, 16, 4, 8}})
			})
		}},
		{"text that is no ID", ferry.ErrInvalid, []string{"32 hexadecimal digits"}, func() error { _, err := kv.ParseID("cf8a"); return err }},
		{"take without producers", ferry.ErrInvalid, []string{"producers"}, func() error { return m.take(ctx, nil, list, 32) }},
		{"peer of another engine", ferry.ErrInvalid, []string{"producers[0]", "Connect"}, func() error { return m.take(ctx, []ferry.Peer{foreign}, list, 32) }},
		{"no list of blocks", ferry.ErrInvalid, []string{"blocks", "1"}, func() error { return m.take(ctx, []ferry.Peer{m.peer}, nil, 32) }},
		{"too few blocks", ferry.ErrInvalid, []string{"blocks"}, func() error { return m.take(ctx, []ferry.Peer{m.peer}, list, 33) }},
		{"block beyond the tensor", ferry.ErrInvalid, []string{"blocks", "4"}, func() error { return m.cache.Offer(m.id, []kv.BlockList{{IDs: []uint32{4}}}, nil) }},
		{"take with a cancelled context", context.Canceled, []string{"context canceled"}, func() error { return m.take(over, []ferry.Peer{m.peer}, list, 32) }},
		{"unknown ID", ferry.ErrInvalid, []string{"id"}, func() error { return m.cache.Seal(m.id, 32) }},
		{"nil cache", ferry.ErrInvalid, []string{"cache is nil", "kv.OpenCache"}, func() error { return (*kv.Cache)(nil).Seal(m.id, 32) }},
	} {
		err := it.error()
		if !errors.Is(err, it.is) {
			t.Errorf("%s: %v is not %v", it.name, err, it.is)
		}
		for _, part := range it.says {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: no %q in %v", it.name, part, err)
			}
		}
	}
}
