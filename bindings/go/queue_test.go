package ferry

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestNotificationsComeInOrderBehindTheirData(t *testing.T) {
	p := newPair(t, 64*64, nil)
	queue, err := p.far.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.far.Queue(Notifications); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	fill(p.here.Bytes(), 11)
	for i := range 64 {
		options := &TransferOptions{Notify: fmt.Appendf(nil, "block %d", i)}
		if _, err := p.peer.Submit(Write, []Request{p.request(i*64, 64)}, options); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.peer.Notify(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		event, err := queue.Next(soon(t))
		if err != nil || event.Kind != EventNotification || string(event.Data) != fmt.Sprintf("block %d", i) {
			t.Fatal(event, err)
		}
		if got, want := p.there.Bytes()[i*64:][:64], p.here.Bytes()[i*64:][:64]; string(got) != string(want) {
			t.Fatalf("block %d is not there", i)
		}
	}
	event, err := queue.Next(soon(t))
	if err != nil || event.Data == nil || len(event.Data) != 0 {
		t.Fatal(event, err)
	}
	// The peer in the event works like a peer from Connect.
	if err := event.Peer.Notify(context.Background(), []byte("answer")); err != nil {
		t.Fatal(err)
	}
}

func TestAChannelHasAQueueOfItsOwn(t *testing.T) {
	p := newPair(t, 64, nil)
	queues := make(map[uint32]*Queue)
	for _, channel := range []uint32{0, 1, ChannelsMax - 1} {
		var err error
		if queues[channel], err = p.far.ChannelQueue(Notifications, channel); err != nil {
			t.Fatal(err)
		}
		if _, err := p.far.ChannelQueue(Notifications, channel); !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
	}
	if _, err := p.far.Queue(Notifications); !errors.Is(err, ErrBusy) {
		t.Fatal("Queue takes another channel than 0:", err)
	}
	// First without data and without waiting, then without data, then after data.
	last := &TransferOptions{Notify: []byte("last"), Channel: ChannelsMax - 1}
	if transfer, err := p.peer.Submit(Write, nil, last); err != nil {
		t.Fatal(err)
	} else if result, err := transfer.Wait(soon(t)); err != nil || result.Notification != NotificationDelivered {
		t.Fatal(result, err)
	}
	if _, err := p.peer.Write(soon(t), []Request{}, &TransferOptions{Notify: []byte{}, Channel: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.peer.Write(soon(t), []Request{p.request(0, 64)}, last); err != nil {
		t.Fatal(err)
	}
	if err := p.peer.Notify(soon(t), []byte("zero")); err != nil {
		t.Fatal(err)
	}
	for channel, expected := range map[uint32][]string{0: {"zero"}, 1: {""}, ChannelsMax - 1: {"last", "last"}} {
		for _, data := range expected {
			event, err := queues[channel].Next(soon(t))
			if err != nil || event.Kind != EventNotification || event.Channel != channel || string(event.Data) != data {
				t.Fatal(channel, event, err)
			}
		}
	}
}

func TestEventsComeUntilTheirContextEnds(t *testing.T) {
	p := newPair(t, 64, nil)
	queue, err := p.far.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	const words = 8
	for i := range words {
		if err := p.peer.Notify(soon(t), fmt.Appendf(nil, "%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	var got string
	var event Event
	for event, err = range queue.Events(ctx) {
		if err != nil {
			break
		}
		got += string(event.Data)
		if _, err := event.Peer.Probe(soon(t)); err != nil {
			t.Error(err)
		}
		if len(got) == words-1 {
			cancel()
		}
	}
	if !errors.Is(err, context.Canceled) || got != "0123456" {
		t.Fatal(got, err)
	}
	// The events after the end are still there.
	if event, err := queue.Next(soon(t)); err != nil || string(event.Data) != "7" {
		t.Fatal(event, err)
	}
	ended := make(chan error)
	go func() {
		for _, err := range queue.Events(soon(t)) {
			ended <- err
		}
	}()
	if err := queue.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) && !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
}

func TestClosingAQueueWakesWhoWaits(t *testing.T) {
	near, far := newEngine(t, nil), newEngine(t, nil)
	first, err := far.Queue(Notifications | Peers)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Connect(soon(t), far.Address()); err != nil {
		t.Fatal(err)
	}
	if event, err := first.Next(soon(t)); err != nil || event.Kind != EventPeerUp {
		t.Fatal(event, err)
	}
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	if event, err := first.Next(soon(t)); err != nil || event.Kind != EventPeerLost || event.Reason == "" {
		t.Fatal(event, err)
	}
	failed := make(chan error)
	go func() { _, err := first.Next(context.Background()); failed <- err }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) && !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
	second, err := far.Queue(Notifications)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}
