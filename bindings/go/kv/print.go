package kv

// #include <ferry_kv.h>
import "C"

import "fmt"

// String returns the name of the kind: its C constant without FERRY_KV_EVENT_. The other numbers print likewise.
func (k EventKind) String() string { return C.GoString(C.ferry_kv_event_name(C.uint32_t(k))) }

func (k StateKind) String() string { return C.GoString(C.ferry_kv_state_name(C.uint32_t(k))) }
func (k GroupKind) String() string { return named(k, "", "FULL", "WINDOW", "LATENT", "STATE") }
func (m Mode) String() string      { return named(m, "AUTO", "PULL", "PUSH") }
func (k MarkKind) String() string  { return named(k, "", "COMPUTE") }

func (a Arrangement) String() string {
	return named(a, "STRIDED", "PAIR_BLOCK_TOKEN_HEAD", "PAIR_BLOCK_HEAD_TOKEN", "BLOCK_PAIR_TOKEN_HEAD",
		"BLOCK_PAIR_HEAD_TOKEN", "BLOCK_HEAD_PAIR_TOKEN")
}

func (k TimelineKind) String() string {
	return named(k, "", "OFFERED", "TAKEN", "READY", "GRANTED", "POSTED", "FINAL", "ARRIVED", "LAYERS", "SEALED", "ENDED", "MARK")
}

// named returns the name of a number for which C has no name, or the number.
func named[T ~uint32](number T, names ...string) string {
	if int64(number) < int64(len(names)) && names[number] != "" {
		return names[number]
	}
	return fmt.Sprint(uint32(number))
}

// String returns one line: "PEER_LOST PEER_LOST by rank 1 (peer 127.0.0.1:7000): why; 32 tokens valid; id cf8a03d1".
// The ID is cut as in ferry's messages, because anyone who knows the whole may take the offer.
func (e Event) String() string {
	if !e.Terminal() {
		return fmt.Sprintf("%v %d; id %x", e.Kind, e.Layers, e.ID[:4])
	}
	text := fmt.Sprintf("%v %v", e.Kind, e.Status)
	if e.Rank >= 0 {
		text += fmt.Sprintf(" by rank %d (peer %v)", e.Rank, e.Peer)
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Kind != EventSent && e.Kind != EventExpired { // those are ends of offers
		text += fmt.Sprintf("; %d tokens valid", e.ValidTokens)
	}
	return fmt.Sprintf("%s; id %x", text, e.ID[:4])
}

func (b Block) String() string { return fmt.Sprintf("block %d of group %d", b.Block, b.Group) }

func (s State) String() string {
	switch s.Kind {
	case StateOffered:
		return fmt.Sprintf("%v, sealed %v, %d takers", s.Kind, s.Sealed, s.Takers)
	case StateTaking:
		return fmt.Sprintf("%v, %d tokens valid", s.Kind, s.ValidTokens)
	case StateEnded:
		return fmt.Sprintf("%v, %v", s.Kind, s.Event)
	}
	return s.Kind.String()
}

func (c *Cache) String() string {
	stats, err := c.Stats()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("cache of %v, %d offers, %d takes", c.engine, stats.Offers, stats.Takes)
}

func (l *Layout) String() string {
	return fmt.Sprintf("layout of rank %d of %d, %d layers in %d groups", l.info.Rank, l.info.Ranks, l.info.Layers, l.info.Groups)
}

// String returns the page of Explain.
func (p *Plan) String() string {
	page, err := p.Explain()
	if err != nil {
		return err.Error()
	}
	return page
}

func (e TimelineEntry) String() string {
	return fmt.Sprintf("%v of %08x at %v for %v, layers %d to %d, tokens %d to %d, detail %d", e.What, e.ID,
		e.Begin.Format("15:04:05.000000"), e.End.Sub(e.Begin), e.FirstLayer, e.EndLayer, e.FirstToken, e.EndToken, e.Detail)
}
