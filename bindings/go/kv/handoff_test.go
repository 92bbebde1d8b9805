package kv_test

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ferry"
	"ferry/kv"
)

var (
	producerShape = shape{1, 8, kv.BlockPairTokenHead, 0}
	consumerShape = shape{1, 12, kv.BlockPairHeadToken, 0}
)

// two are a producer and a consumer of one rank each; peers is the producer as the consumer knows it.
func two(t testing.TB) (producer, consumer *rank, peers []ferry.Peer, id kv.ID) {
	producer, consumer = open(t, producerShape, 0), open(t, consumerShape, 0)
	return producer, consumer, consumer.connect(t, producer), newID(t)
}

func TestWhatIsTakenEqualsWhatWasOffered(t *testing.T) {
	for _, mode := range []kv.Mode{kv.ModeAuto, kv.ModePull, kv.ModePush} {
		for _, shapes := range [][2]shape{
			{{1, 8, kv.BlockPairHeadToken, 0}, {1, 8, kv.BlockPairHeadToken, 0}},
			{{2, 8, kv.PairBlockTokenHead, 0}, {1, 12, kv.BlockHeadPairToken, 0}},
			{{1, 16, kv.BlockPairHeadToken, 3}, {2, 4, kv.PairBlockHeadToken, 0}},
		} {
			producers, consumers, id := instance(t, shapes[0]), instance(t, shapes[1]), newID(t)
			for _, consumer := range consumers {
				consumer.take(t, soon(t), id, consumer.connect(t, producers...), &kv.TakeOptions{Mode: mode})
			}
			for _, producer := range producers {
				producer.offer(t, id, nil)
				producer.finish(t, id)
			}
			for _, consumer := range consumers {
				event := consumer.end(t, id, kv.EventReceived, ferry.OK)
				if event.ValidTokens != tokens || event.Untrusted != nil || event.Err() != nil {
					t.Fatalf("%+v", event)
				}
				consumer.holds(t, 0, tokens)
			}
			for _, producer := range producers {
				producer.end(t, id, kv.EventSent, ferry.OK)
			}
		}
	}
}

func TestLayersAreToldWhileLaterOnesAreComputed(t *testing.T) {
	producer, consumer, peers, id := two(t)
	consumer.take(t, context.Background(), id, peers, &kv.TakeOptions{Layers: true})
	// The blocks come in two parts: those of the first chunk, then the rest.
	const chunk, split, whole = 40, 5, (tokens + 7) / 8
	var first, rest []kv.BlockList
	for _, ids := range producer.ids {
		first = append(first, kv.BlockList{IDs: ids[:split]})
		rest = append(rest, kv.BlockList{IDs: ids[split:whole]})
	}
	must(t, producer.cache.Offer(id, first, nil))
	if err := producer.cache.Extend(id, rest[:1]); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
	producer.write(producer.words, 0, 0, chunk)
	must(t, producer.cache.ReadyLayers(id, 0, 1, chunk))
	if err := producer.cache.ReadyLayers(id, 0, 1, chunk+1); !errors.Is(err, ferry.ErrInvalid) { // no blocks for it
		t.Fatal(err)
	}
	must(t, producer.cache.Extend(id, rest))
	if err := producer.cache.ReadyLayers(id, 2, 3, tokens); !errors.Is(err, ferry.ErrInvalid) { // not in order
		t.Fatal(err)
	}
	for layer := 1; layer < len(model); layer++ {
		producer.write(producer.words, layer, 0, chunk)
		must(t, producer.cache.ReadyLayers(id, uint32(layer), uint32(layer+1), chunk))
	}
	expected := make([]uint32, consumer.size)
	for layer := range model {
		producer.write(producer.words, layer, 0, tokens)
		must(t, producer.cache.ReadyLayers(id, uint32(layer), uint32(layer+1), tokens))
		if layer+1 == len(model) {
			break
		}
		event := consumer.next(t)
		if event.Kind != kv.EventLayers || event.Layers != uint32(layer+1) || event.ID != id || event.Terminal() {
			t.Fatalf("%+v", event)
		}
		// The announced layers may be read.
		consumer.write(expected, layer, 0, tokens)
		if end := consumer.starts[layer+1]; !slices.Equal(consumer.words[:end], expected[:end]) {
			t.Fatal(layer)
		}
	}
	must(t, producer.cache.Seal(id, tokens))
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	producer.end(t, id, kv.EventSent, ferry.OK)
	consumer.holds(t, 0, tokens)
}

func TestTokensThatTheConsumerHasStay(t *testing.T) {
	producer, consumer, peers, id := two(t)
	consumer.take(t, soon(t), id, peers, &kv.TakeOptions{SkipTokens: 50})
	producer.offer(t, id, nil)
	producer.finish(t, id)
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	consumer.holds(t, 50, tokens)
}

func TestAnOfferHasAsManyTakersAsItSays(t *testing.T) {
	producer, consumer, peers, id := two(t)
	third := open(t, consumerShape, 0)
	producer.offer(t, id, &kv.OfferOptions{Takers: 2})
	producer.finish(t, id)
	consumer.take(t, soon(t), id, peers, &kv.TakeOptions{Taker: 7})
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	if state, err := producer.cache.State(id); err != nil || state != (kv.State{Kind: kv.StateOffered, Sealed: true, Takers: 1}) {
		t.Fatal(state, err)
	}
	third.take(t, soon(t), id, third.connect(t, producer), &kv.TakeOptions{Taker: 8})
	third.end(t, id, kv.EventReceived, ferry.OK)
	producer.end(t, id, kv.EventSent, ferry.OK)
}

// The second of two consumers with the same number is refused: its rank has taken already. The number is 1 if none is
// given.
func TestConsumersAreToldApartByTheirNumbers(t *testing.T) {
	producer, consumer, peers, id := two(t)
	third := open(t, consumerShape, 0)
	producer.offer(t, id, &kv.OfferOptions{Takers: 2})
	producer.finish(t, id)
	consumer.take(t, soon(t), id, peers, nil)
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	third.take(t, soon(t), id, third.connect(t, producer), &kv.TakeOptions{Taker: 1})
	if event := third.next(t); event.Kind != kv.EventFailed || !strings.Contains(event.Message, "has taken already") {
		t.Fatalf("%+v", event)
	}
}

func TestOnlyPeersOfTheListMayTake(t *testing.T) {
	producer, consumer, peers, id := two(t)
	third := open(t, consumerShape, 0)
	producer.offer(t, id, &kv.OfferOptions{Only: producer.connect(t, consumer)})
	producer.finish(t, id)
	third.take(t, soon(t), id, third.connect(t, producer), nil)
	if event := third.next(t); event.Kind != kv.EventFailed || event.ValidTokens != 0 || event.Err() == nil {
		t.Fatalf("%+v", event)
	}
	consumer.take(t, soon(t), id, peers, nil)
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	producer.end(t, id, kv.EventSent, ferry.OK)
}

func TestAnAbortedOfferEndsItsTake(t *testing.T) {
	producer, consumer, peers, id := two(t)
	producer.offer(t, id, nil)
	must(t, producer.cache.ReadyLayers(id, 0, 1, tokens))
	consumer.take(t, soon(t), id, peers, &kv.TakeOptions{Layers: true})
	if event := consumer.next(t); event.Layers != 1 { // the handoff is under way
		t.Fatalf("%+v", event)
	}
	must(t, producer.cache.CancelOffer(id))
	producer.end(t, id, kv.EventCancelled, ferry.ErrCancelled)
	event := consumer.next(t)
	if event.Kind != kv.EventFailed || event.ValidTokens != 0 {
		t.Fatalf("%+v", event)
	}
	var latents []uint32
	for _, block := range event.Untrusted {
		if block.Group == 2 {
			latents = append(latents, block.Block)
		}
	}
	slices.Sort(latents)
	if want := slices.Sorted(slices.Values(consumer.lists()[2].IDs)); !slices.Equal(latents, want) {
		t.Fatal(latents, want)
	}
	var failed *ferry.Error
	if err := event.Err(); !errors.As(err, &failed) || failed.Message != event.Message || !errors.Is(err, event.Status) {
		t.Fatal(err)
	}
	if err := producer.cache.CancelOffer(id); !errors.Is(err, ferry.ErrStale) {
		t.Fatal(err)
	}
	if err := producer.cache.Offer(id, producer.lists(), nil); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestACancelledTakeGivesItsBlocksBack(t *testing.T) {
	_, consumer, peers, id := two(t)
	consumer.take(t, soon(t), id, peers, nil)
	if state, err := consumer.cache.State(id); err != nil || state.Kind != kv.StateTaking {
		t.Fatal(state, err)
	}
	must(t, consumer.cache.CancelTake(id))
	consumer.end(t, id, kv.EventCancelled, ferry.ErrCancelled)
	if err := consumer.cache.CancelTake(id); !errors.Is(err, ferry.ErrStale) {
		t.Fatal(err)
	}
	if err := consumer.cache.CancelTake(newID(t)); !errors.Is(err, ferry.ErrInvalid) {
		t.Fatal(err)
	}
	consumer.holds(t, 0, 0)
}

func TestAContextThatIsCancelledCancelsItsTake(t *testing.T) {
	producer, consumer, peers, id := two(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	consumer.take(t, ctx, id, peers, nil)
	cancel()
	consumer.end(t, id, kv.EventCancelled, ferry.ErrCancelled)
	if err := consumer.cache.Take(ctx, newID(t), peers, consumer.lists(), tokens, nil); !errors.Is(err, context.Canceled) ||
		!errors.Is(err, ferry.ErrCancelled) {
		t.Fatal(err)
	}
	// A context that ends after its take does nothing.
	id = newID(t)
	ctx, cancel = context.WithCancel(context.Background())
	consumer.take(t, ctx, id, peers, nil)
	producer.offer(t, id, nil)
	producer.finish(t, id)
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	cancel()
	consumer.holds(t, 0, tokens)
}

// An observed context counts the callbacks on its end that were stopped.
type observed struct {
	context.Context
	done    chan struct{}
	stopped atomic.Int32
}

func (o *observed) Done() <-chan struct{} { return o.done }

func (o *observed) AfterFunc(func()) func() bool {
	return func() bool { return o.stopped.Add(1) == 1 }
}

func TestATakeThatHasEndedLeavesItsContext(t *testing.T) {
	producer, consumer, peers, id := two(t)
	ctx := &observed{Context: context.Background(), done: make(chan struct{})}
	consumer.take(t, ctx, id, peers, &kv.TakeOptions{Layers: true})
	producer.offer(t, id, nil)
	must(t, producer.cache.ReadyLayers(id, 0, 1, tokens))
	if event := consumer.next(t); event.Terminal() || ctx.stopped.Load() != 0 {
		t.Fatalf("%+v, %d", event, ctx.stopped.Load())
	}
	producer.write(producer.words, 0, 0, tokens)
	must(t, producer.cache.ReadyLayers(id, 1, uint32(len(model)), tokens))
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	if ctx.stopped.Load() != 1 {
		t.Fatal(ctx.stopped.Load())
	}
}

// The lists of events are freed; each has a megabyte here.
func TestEventsLeaveNothingInC(t *testing.T) {
	const count = 1 << 17
	open := func() *rank {
		r := &rank{side: newSide(consumerShape, 0)}
		var err error
		r.engine, err = ferry.Open(nil)
		must(t, err)
		t.Cleanup(func() { must(t, r.engine.Close()) })
		r.memory, err = r.engine.Alloc(2*count, nil)
		must(t, err)
		d := &kv.Description{Groups: []kv.Group{{Kind: kv.GroupLatent, BlockTokens: 1}}}
		for i, name := range []string{"first", "second"} {
			d.Layers = append(d.Layers, kv.Layer{Name: name, Heads: 1, Pairs: 1, Elements: 1, ElementBytes: 1,
				Address: r.memory.Address() + uint64(i*count), Blocks: count, Arrangement: kv.BlockPairHeadToken})
		}
		layout, err := kv.NewLayout(d)
		must(t, err)
		r.cache, err = kv.OpenCache(r.engine, layout, []*ferry.Memory{r.memory}, &kv.CacheOptions{Silence: time.Minute})
		must(t, err)
		t.Cleanup(func() { must(t, r.cache.Close()) })
		return r
	}
	producer, consumer := open(), open()
	peers := consumer.connect(t, producer)
	all := []kv.BlockList{{IDs: make([]uint32, count)}}
	for i := range all[0].IDs {
		all[0].IDs[i] = uint32(i)
	}
	least := 0
	const rounds = 24
	for i := range rounds {
		id := newID(t)
		must(t, producer.cache.Offer(id, all, nil))
		must(t, producer.cache.ReadyLayers(id, 0, 1, count))
		must(t, consumer.cache.Take(soon(t), id, peers, all, count, &kv.TakeOptions{Layers: true}))
		consumer.next(t)
		must(t, consumer.cache.CancelTake(id))
		if event := consumer.end(t, id, kv.EventCancelled, ferry.ErrCancelled); len(event.Untrusted) != count {
			t.Fatal(len(event.Untrusted))
		}
		producer.cache.CancelOffer(id) // or the consumer's end has ended it
		producer.next(t)
		runtime.GC()
		if i == 8 {
			least = resident(t)
		}
	}
	if grown := resident(t) - least; grown > 8<<20 {
		t.Errorf("%d MiB more after %d events", grown>>20, rounds)
	}
}

func TestADeadlineOfTheContextIsThatOfItsTake(t *testing.T) {
	_, consumer, peers, id := two(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	consumer.take(t, ctx, id, peers, nil)
	consumer.end(t, id, kv.EventFailed, ferry.ErrTimeout)
	<-ctx.Done()
	if err := consumer.cache.Take(ctx, newID(t), peers, consumer.lists(), tokens, nil); !errors.Is(err, ferry.ErrTimeout) {
		t.Fatal(err)
	}
}

func TestALeaseThatNobodyTakesExpires(t *testing.T) {
	producer := open(t, producerShape, 0)
	id := newID(t)
	producer.offer(t, id, &kv.OfferOptions{Lease: time.Nanosecond}) // the shortest, not the default
	must(t, producer.cache.Seal(id, 0))
	producer.end(t, id, kv.EventExpired, ferry.ErrTimeout)
}

func TestMemoryPressureEndsOffersThatNobodyTakes(t *testing.T) {
	producer := open(t, producerShape, 0)
	id := newID(t)
	producer.offer(t, id, &kv.OfferOptions{Lease: math.MaxInt64})
	if freed, err := producer.cache.Reclaim(1); freed != 0 || err != nil { // not sealed
		t.Fatal(freed, err)
	}
	must(t, producer.cache.Seal(id, tokens))
	count := 0
	for _, list := range producer.lists() {
		count += len(list.IDs)
	}
	if freed, err := producer.cache.Reclaim(1); freed != count || err != nil {
		t.Fatal(freed, err)
	}
	producer.end(t, id, kv.EventExpired, ferry.ErrLimit)
	if unfenced, err := producer.cache.UnfencedBlocks(); unfenced != 0 || err != nil {
		t.Fatal(unfenced, err)
	}
}

// An engine without a cache does not answer, and nothing that it sends can land: a take waits for the cache.
func TestAnEngineWithoutACacheIsWaitedFor(t *testing.T) {
	hasty := openWith(t, consumerShape, 0, kv.CacheOptions{Silence: 50 * time.Millisecond})
	late, err := ferry.Open(nil)
	must(t, err)
	defer late.Close()
	id := newID(t)
	peer, err := hasty.engine.Connect(soon(t), late.Address())
	must(t, err)
	hasty.take(t, soon(t), id, []ferry.Peer{peer}, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := hasty.cache.Next(ctx); !errors.Is(err, ferry.ErrTimeout) {
		t.Fatal(err)
	}
	if state, err := hasty.cache.State(id); err != nil || state.Kind != kv.StateTaking {
		t.Fatal(state, err)
	}
	must(t, late.Close())
	hasty.end(t, id, kv.EventPeerLost, ferry.ErrPeerLost)
}

func TestWaitEndsWithItsContextAndLosesNothing(t *testing.T) {
	producer := open(t, producerShape, 0)
	const askers = 8
	var all sync.WaitGroup
	for range askers {
		all.Add(1)
		go func() {
			defer all.Done()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			if _, err := producer.cache.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ferry.ErrTimeout) {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	got := make(chan kv.ID, askers)
	for range askers {
		go func() {
			event, err := producer.cache.Next(soon(t))
			if err != nil {
				t.Error(err)
			}
			got <- event.ID
		}()
	}
	want := map[kv.ID]bool{}
	for range askers {
		id := newID(t)
		want[id] = true
		must(t, producer.cache.Offer(id, make([]kv.BlockList, len(model)), nil))
		must(t, producer.cache.CancelOffer(id))
	}
	for range askers {
		delete(want, <-got)
	}
	if len(want) != 0 {
		t.Fatal(want)
	}
}

func TestClosingEndsWhatIsOpenAndWhoWaits(t *testing.T) {
	producer, consumer, _, id := two(t)
	cache := producer.cache
	producer.offer(t, id, nil)
	other := newID(t)
	producer.take(t, soon(t), other, producer.connect(t, consumer), nil)
	must(t, cache.Close())
	must(t, cache.Close())
	for range 2 {
		event, ok, err := cache.Poll()
		if !ok || err != nil || event.Kind != kv.EventCancelled || event.Status != ferry.ErrClosed ||
			event.ID != id && event.ID != other {
			t.Fatalf("%+v %v %v", event, ok, err)
		}
	}
	if _, ok, err := cache.Poll(); ok || !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := cache.Next(soon(t)); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	if err := cache.Offer(newID(t), producer.lists(), nil); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := cache.State(id); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	// The engine accepts the next cache.
	next, err := kv.OpenCache(producer.engine, producer.layout(t, producer.memory.Address()), []*ferry.Memory{producer.memory}, nil)
	must(t, err)
	ends := make(chan error)
	for range 3 {
		go func() { _, err := next.Next(context.Background()); ends <- err }()
	}
	must(t, next.Close())
	for range 3 {
		if err := <-ends; !errors.Is(err, ferry.ErrClosed) {
			t.Fatal(err)
		}
	}
}

// Events that are left when a cache closes are delivered once, whichever goroutine waits.
func TestNoEventIsLostWhileTheCacheCloses(t *testing.T) {
	for range 20 {
		producer := open(t, producerShape, 0)
		const offers = 16
		for range offers {
			producer.offer(t, newID(t), nil)
		}
		var all sync.WaitGroup
		got := make(chan kv.ID, 2*offers)
		for range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				for {
					event, err := producer.cache.Next(context.Background())
					if err != nil {
						if !errors.Is(err, ferry.ErrClosed) {
							t.Error(err)
						}
						return
					}
					got <- event.ID
				}
			}()
		}
		must(t, producer.cache.Close())
		all.Wait()
		close(got)
		seen := map[kv.ID]bool{}
		for id := range got {
			seen[id] = true
		}
		// The waiters may have returned when the cache closed, before all events were there.
		for {
			event, ok, _ := producer.cache.Poll()
			if !ok {
				break
			}
			if seen[event.ID] {
				t.Fatal("an event came twice")
			}
			seen[event.ID] = true
		}
		if len(seen) != offers {
			t.Fatal(len(seen))
		}
	}
}

func TestAClosedCacheLeavesNoDescriptor(t *testing.T) {
	r := open(t, consumerShape, 0)
	must(t, r.cache.Close())
	layout := r.layout(t, r.memory.Address())
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	before := descriptors()
	for range 16 {
		cache, err := kv.OpenCache(r.engine, layout, []*ferry.Memory{r.memory}, nil)
		must(t, err)
		must(t, cache.Close())
	}
	if after := descriptors(); after >= before+16 {
		t.Fatal(before, after)
	}
}

func TestAnEngineThatClosesEndsItsCache(t *testing.T) {
	_, consumer, peers, id := two(t)
	consumer.take(t, soon(t), id, peers, nil)
	must(t, consumer.engine.Close())
	if event := consumer.next(t); !event.Terminal() || event.ID != id {
		t.Fatalf("%+v", event)
	}
	if _, err := consumer.cache.Next(soon(t)); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	if err := consumer.cache.CancelTake(id); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	must(t, consumer.cache.Close())
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	producer, consumer, peers, id := two(t)
	lists := consumer.lists()
	ofOther := producer.connect(t, consumer)
	ctx := soon(t)
	layout := consumer.layout(t, consumer.memory.Address())
	open := func(engine *ferry.Engine, layout *kv.Layout, memory []*ferry.Memory, options *kv.CacheOptions) error {
		_, err := kv.OpenCache(engine, layout, memory, options)
		return err
	}
	idle, err := ferry.Open(nil)
	must(t, err)
	defer idle.Close()
	little, err := idle.Alloc(64, nil)
	must(t, err)
	gone, err := ferry.Open(nil)
	must(t, err)
	must(t, gone.Close())
	for i, it := range []struct {
		err    error
		status ferry.Status
		part   string
	}{
		{consumer.cache.Take(ctx, id, append(peers, ofOther...), lists, tokens, nil), ferry.ErrInvalid, "producers[1] is no peer of the cache's engine"},
		{consumer.cache.Take(ctx, id, make([]ferry.Peer, 1), lists, tokens, nil), ferry.ErrInvalid, "producers[0] is no peer"},
		{consumer.cache.Take(ctx, id, nil, lists, tokens, nil), ferry.ErrInvalid, ""},
		{consumer.cache.Take(ctx, id, peers, nil, tokens, nil), ferry.ErrInvalid, ""},
		{consumer.cache.Take(ctx, id, peers, lists, tokens+100, nil), ferry.ErrInvalid, "blocks"},
		{consumer.cache.Take(ctx, id, peers, lists, tokens, &kv.TakeOptions{Mode: 3}), ferry.ErrInvalid, "mode is 3"},
		{consumer.cache.Offer(id, lists, &kv.OfferOptions{Only: []ferry.Peer{}}), ferry.ErrInvalid, "nobody could take"},
		{consumer.cache.Offer(id, lists, &kv.OfferOptions{Only: ofOther}), ferry.ErrInvalid, "Only[0] is no peer"},
		{consumer.cache.Offer(id, lists, &kv.OfferOptions{Takers: 65}), ferry.ErrInvalid, "takers"},
		{consumer.cache.Offer(id, lists, &kv.OfferOptions{Lease: -1}), ferry.ErrInvalid, "Lease is -1ns"},
		{consumer.cache.Offer(id, []kv.BlockList{{IDs: []uint32{1, 1}}, {}, {}}, nil), ferry.ErrInvalid, "1"},
		{consumer.cache.Offer(id, []kv.BlockList{{IDs: []uint32{blocks}}, {}, {}}, nil), ferry.ErrInvalid, "24"},
		{consumer.cache.Seal(id, 1), ferry.ErrInvalid, "is no offer"},
		{func() error { _, err := consumer.cache.Reclaim(-1); return err }(), ferry.ErrInvalid, "blocks is -1"},
		{open(nil, layout, []*ferry.Memory{consumer.memory}, nil), ferry.ErrInvalid, "engine is nil"},
		{open(gone, layout, []*ferry.Memory{little}, nil), ferry.ErrClosed, "the engine is closed"},
		{open(idle, nil, []*ferry.Memory{little}, nil), ferry.ErrInvalid, "layout is nil; kv.NewLayout returns one"},
		{open(idle, layout, []*ferry.Memory{little}, nil), ferry.ErrInvalid, "model.layers.0.attn"},
		{open(idle, layout, []*ferry.Memory{nil}, nil), ferry.ErrInvalid, "memory[0] is nil"},
		{open(idle, layout, nil, nil), ferry.ErrInvalid, ""},
		{open(idle, layout, []*ferry.Memory{little}, &kv.CacheOptions{Silence: -1}), ferry.ErrInvalid, "Silence is -1ns"},
		{open(consumer.engine, layout, []*ferry.Memory{consumer.memory}, nil), ferry.ErrBusy, "channel 1"},
	} {
		if !errors.Is(it.err, it.status) || !strings.Contains(it.err.Error(), it.part) {
			t.Errorf("%d: %v, not %v with %q", i, it.err, it.status, it.part)
		}
	}
	// None of this has left anything behind.
	if state, err := consumer.cache.State(id); err != nil || state.Kind != kv.StateUnknown {
		t.Fatal(state, err)
	}
}

func TestIDsAreRandom(t *testing.T) {
	first, second := newID(t), newID(t)
	if first == second || first == (kv.ID{}) || len(first.String()) != 32 {
		t.Fatal(first, second)
	}
}
