package kv_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"ferry"
	"ferry/kv"
)

func of(entries []kv.TimelineEntry, what kv.TimelineKind) []kv.TimelineEntry {
	var found []kv.TimelineEntry
	for _, entry := range entries {
		if entry.What == what {
			found = append(found, entry)
		}
	}
	return found
}

func timeline(t *testing.T, c *kv.Cache, first uint64) []kv.TimelineEntry {
	t.Helper()
	entries, err := c.Timeline(first)
	must(t, err)
	return entries
}

func TestAHandoffIsRecordedAndDrawn(t *testing.T) {
	producer, consumer, peers, id := two(t)
	must(t, producer.cache.StartTimeline(64))
	consumer.take(t, soon(t), id, peers, &kv.TakeOptions{Mode: kv.ModePush})
	producer.offer(t, id, nil)
	for layer := range model {
		begin := time.Now()
		producer.write(producer.words, layer, 0, tokens)
		must(t, producer.cache.Mark(id, kv.MarkCompute, uint32(layer), begin, time.Now()))
		must(t, producer.cache.ReadyLayers(id, uint32(layer), uint32(layer+1), tokens))
	}
	must(t, producer.cache.Seal(id, tokens))
	consumer.end(t, id, kv.EventReceived, ferry.OK)
	producer.end(t, id, kv.EventSent, ferry.OK)

	entries := timeline(t, producer.cache, 0)
	for i, entry := range entries {
		if entry.Number != uint64(i) || entry.ID != binary.BigEndian.Uint32(id[:]) || entry.Begin.After(entry.End) {
			t.Fatalf("%d: %+v", i, entry)
		}
	}
	marks := of(entries, kv.TimelineMarked)
	if len(marks) != len(model) || marks[2].FirstLayer != 2 || marks[2].Detail != int32(kv.MarkCompute) {
		t.Fatalf("%+v", marks)
	}
	posted, final := of(entries, kv.TimelinePosted), of(entries, kv.TimelineFinal)
	known, err := producer.engine.Peers()
	must(t, err)
	if len(posted) == 0 || len(final) != len(posted) || final[0].Peer != known[0] || final[0].Bytes == 0 ||
		final[0].EndLayer <= final[0].FirstLayer || final[0].Detail != int32(ferry.OK) {
		t.Fatalf("%+v %+v", posted, final)
	}
	if sealed := of(entries, kv.TimelineSealed); len(sealed) != 1 || sealed[0].EndToken != tokens || sealed[0].Peer != (ferry.Peer{}) {
		t.Fatalf("%+v", sealed)
	}
	last := len(entries) - 1
	if end := entries[last]; end.What != kv.TimelineEnded || kv.EventKind(end.FirstLayer) != kv.EventSent {
		t.Fatalf("%+v", end)
	}
	if rest := timeline(t, producer.cache, uint64(last)); len(rest) != 1 || rest[0] != entries[last] {
		t.Fatalf("%+v", rest)
	}
	if none := append(timeline(t, producer.cache, uint64(last)+1), timeline(t, consumer.cache, 0)...); len(none) != 0 {
		t.Fatalf("%+v", none)
	}

	picture, err := kv.TimelineSVG(entries)
	must(t, err)
	if !strings.HasPrefix(picture, "<svg ") || !strings.HasSuffix(picture, "</svg>\n") ||
		strings.Count(picture, `<rect class="compute"`) != len(model) || strings.Count(picture, `<rect class="transfer"`) < len(model) {
		t.Fatal(picture)
	}
	must(t, producer.cache.StopTimeline())
	if left := timeline(t, producer.cache, 0); len(left) != 0 {
		t.Fatalf("%+v", left)
	}
}

// More entries than one read of C returns, and more than the recording keeps.
func TestATimelineIsReadWholeAndBounded(t *testing.T) {
	r, id := open(t, consumerShape, 0), newID(t)
	must(t, r.cache.StartTimeline(2500))
	at := time.Now()
	for layer := range 2048 {
		must(t, r.cache.Mark(id, 7, uint32(layer), at, at))
	}
	if entries := timeline(t, r.cache, 0); len(entries) != 2048 { // a whole number of reads
		t.Fatal(len(entries))
	}
	for layer := 2048; layer < 2600; layer++ {
		must(t, r.cache.Mark(id, 7, uint32(layer), at, at))
	}
	entries := timeline(t, r.cache, 0)
	if len(entries) != 2500 {
		t.Fatal(len(entries))
	}
	for i, entry := range entries {
		if entry.Number != uint64(i+100) || entry.FirstLayer != uint32(i+100) || entry.Detail != 7 {
			t.Fatalf("%d: %+v", i, entry)
		}
	}
	if text, err := r.cache.Metrics(); err != nil || !strings.Contains(text, "ferry_kv_timeline_overwritten_total 100") {
		t.Fatal(text, err)
	}
}

// A mark's times lie between those of entries that ferry makes before and after it: both are on one clock.
func TestMarksHaveTheClockOfTheEntries(t *testing.T) {
	producer, id := open(t, producerShape, 0), newID(t)
	must(t, producer.cache.StartTimeline(8))
	producer.offer(t, id, nil)
	time.Sleep(5 * time.Millisecond) // far more than the two clocks are read apart
	begin := time.Now()
	must(t, producer.cache.Mark(id, 9, 1, begin, begin.Add(3*time.Microsecond)))
	time.Sleep(5 * time.Millisecond)
	must(t, producer.cache.Seal(id, 0))
	entries := timeline(t, producer.cache, 0)
	if len(entries) < 3 || entries[0].What != kv.TimelineOffered || entries[2].What != kv.TimelineSealed {
		t.Fatalf("%+v", entries)
	}
	mark := entries[1]
	if !mark.Begin.Equal(begin) || mark.End.Sub(mark.Begin) != 3*time.Microsecond || !mark.Begin.After(entries[0].End) ||
		!mark.End.Before(entries[2].Begin) {
		t.Fatalf("%+v", entries)
	}
}

func TestWhatIsWrongWithATimelineIsNamed(t *testing.T) {
	r, id := open(t, consumerShape, 0), newID(t)
	at := time.Now()
	draw := func(entries ...kv.TimelineEntry) error { _, err := kv.TimelineSVG(entries); return err }
	for i, it := range []struct {
		err    error
		status ferry.Status
		part   string
	}{
		{r.cache.StartTimeline(-1), ferry.ErrInvalid, "entriesMax is -1"},
		{r.cache.StartTimeline(0), ferry.ErrInvalid, "entries_max: 0 is not 1 to 1048576"},
		{r.cache.Mark(id, 1, 0, at, at.Add(-1)), ferry.ErrInvalid, "is before begin_ns"},
		{draw(kv.TimelineEntry{What: kv.TimelineOffered}, kv.TimelineEntry{}), ferry.ErrInvalid, "entries[1].what is 0"},
	} {
		if !errors.Is(it.err, it.status) || !strings.Contains(it.err.Error(), it.part) {
			t.Errorf("%d: %v, not %v with %q", i, it.err, it.status, it.part)
		}
	}
	must(t, draw())
	must(t, r.cache.StopTimeline()) // none is on
	must(t, r.cache.Mark(id, 1, 0, at, at))
	must(t, r.cache.Close())
	_, err := r.cache.Timeline(0)
	for _, err := range []error{err, r.cache.StartTimeline(1), r.cache.StopTimeline(), r.cache.Mark(id, 1, 0, at, at)} {
		if !errors.Is(err, ferry.ErrClosed) {
			t.Error(err)
		}
	}
}
