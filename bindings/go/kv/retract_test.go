package kv_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"ferry"
	"ferry/kv"
)

// The second chunk is taken back, and comes again in other blocks.
func TestWhatIsTakenBackIsHandedOverAnew(t *testing.T) {
	producer, consumer, peers, id := two(t)
	producer.offer(t, id, nil)
	producer.write(producer.words, 0, 0, tokens)
	must(t, producer.cache.ReadyLayers(id, 0, 1, tokens))
	must(t, producer.cache.Seal(id, tokens))
	must(t, producer.cache.Retract(soon(t), id, 40))
	if state, err := producer.cache.State(id); err != nil || state.Sealed {
		t.Fatal(state, err)
	}
	if err := producer.cache.ReadyLayers(id, 0, 1, tokens); !errors.Is(err, ferry.ErrInvalid) { // its blocks are gone
		t.Fatal(err)
	}
	var rest []kv.BlockList
	for _, ids := range producer.ids {
		rest = append(rest, kv.BlockList{IDs: slices.Clone(ids[5:])})
	}
	must(t, producer.cache.Extend(id, rest))
	consumer.take(t, soon(t), id, peers, nil)
	producer.finish(t, id)
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	producer.end(t, id, kv.EventSent, ferry.OK)
	consumer.holds(t, 0, tokens)
	for _, err := range []error{
		producer.cache.Retract(soon(t), id, 0),
		producer.cache.RetractWindow(soon(t), id, 1, 8),
	} {
		if !errors.Is(err, ferry.ErrStale) {
			t.Fatal(err)
		}
	}
	text, err := producer.cache.Metrics()
	if err != nil || !strings.Contains(text, "ferry_kv_handoffs_total{end=\"sent\"} 1\n") {
		t.Fatal(text, err)
	}
	must(t, producer.cache.Close())
	if err := producer.cache.Retract(context.Background(), id, 0); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := producer.cache.Metrics(); !errors.Is(err, ferry.ErrClosed) {
		t.Fatal(err)
	}
}

func TestLeasesAreBounded(t *testing.T) {
	producer, id := openWith(t, producerShape, 0, kv.CacheOptions{LeasedBlocksMax: 1}), newID(t)
	producer.offer(t, id, nil)
	must(t, producer.cache.Seal(id, tokens))
	producer.end(t, id, kv.EventExpired, ferry.ErrLimit)
}
