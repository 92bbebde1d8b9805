package kv_test

import (
	"context"
	"errors"
	"testing"

	"ferry"
	"ferry/kv"
)

func TestACacheCountsWhatItDoes(t *testing.T) {
	producer, consumer, peers, id := two(t)
	producer.offer(t, id, nil)
	consumer.take(t, soon(t), id, peers, nil)
	if stats, err := consumer.cache.Stats(); err != nil || stats.Takes != 1 || stats.EndedReceived != 0 {
		t.Fatal(stats, err)
	}
	producer.finish(t, id)
	for event, err := range consumer.cache.Events(soon(t)) {
		must(t, err)
		if event.Terminal() {
			break
		}
	}
	producer.end(t, id, kv.EventSent, ferry.OK)
	received, err := consumer.cache.Stats()
	must(t, err)
	sent, err := producer.cache.Stats()
	must(t, err)
	if received.EndedReceived != 1 || sent.EndedSent != 1 || received.BytesReceived == 0 || sent.BytesSent != received.BytesReceived || sent.Offers != 0 {
		t.Errorf("%+v %+v", sent, received)
	}
	if failed, err := consumer.cache.EndedFailed(ferry.ErrStale); err != nil || failed != 0 {
		t.Error(failed, err)
	}
	var last error
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for _, last = range consumer.cache.Events(over) {
	}
	if !errors.Is(last, context.Canceled) {
		t.Error(last)
	}
	must(t, consumer.cache.Close())
	must(t, consumer.cache.Close())
	for _, last = range consumer.cache.Events(soon(t)) {
	}
	if !errors.Is(last, ferry.ErrClosed) {
		t.Error(last)
	}
}
