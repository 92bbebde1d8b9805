// Kv_handoff hands the KV cache of a sequence from two prefill ranks to one decode rank that arranges it otherwise.
// Each of ferry's languages has this program; any three can talk:
//
//	kv_handoff prefill RANK               prints "ADDRESS host:port", reads an ID, and offers its heads layer by layer
//	kv_handoff decode ADDRESS0 ADDRESS1   prints "ID hex", takes, and checks the bytes; 3 if the take ends otherwise
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"
	"unsafe"

	"ferry"
	"ferry/kv"
)

const layers, heads, elements, blockTokens, blocks = 32, 4, 64, 16, 16
const tokens = blocks * blockTokens

// A worker is one rank: its engine, its cache, and the cache's memory.
type worker struct {
	engine *ferry.Engine
	cache  *kv.Cache
	memory []uint16
	list   []kv.BlockList // of the one group
	place  func(block, row int) (token, head int)
}

func open(rank, ranks int, order string, rows ...uint64) *worker {
	engine := must(ferry.Open(nil))
	elementsOfLayer := blocks * 2 * blockTokens * heads / ranks * elements
	memory := must(engine.Alloc(2*layers*elementsOfLayer, nil))
	desc := &kv.Description{Model: "example", Revision: "1", Cache: "fp16", RoPE: "none",
		TPRank: uint32(rank), TPSize: uint32(ranks),
		Groups: []kv.Group{{Kind: kv.GroupFull, BlockTokens: blockTokens}}}
	for layer := range layers {
		desc.Layers = append(desc.Layers, kv.LayerOf(fmt.Sprintf("layers.%d", layer), order, kv.Tensor{
			Address:      memory.Address() + uint64(2*layer*elementsOfLayer),
			ElementBytes: 2, Shape: []uint64{blocks, 2, rows[0], rows[1], elements}}))
	}
	cache := must(kv.OpenCache(engine, must(kv.NewLayout(desc)), []*ferry.Memory{memory}, nil))
	words := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(memory.Bytes()))), memory.Len()/2)
	return &worker{engine: engine, cache: cache, memory: words, list: make([]kv.BlockList, 1)}
}

// visit calls f with every element of a layer and with the value that it should have.
func (w *worker) visit(layer int, f func(at *uint16, value uint16)) {
	rest := w.memory[len(w.memory)/layers*layer:][:len(w.memory)/layers]
	for i := range rest {
		rows := len(rest) / blocks / 2 / elements
		element, row, pair, block := i%elements, i/elements%rows, i/elements/rows%2, i/elements/rows/2
		token, head := w.place(block, row)
		f(&rest[i], uint16(layer*7919+pair*104729+head*1299709+token*31+element))
	}
}

func prefill(ctx context.Context, rank int) kv.EventKind {
	w := open(rank, 2, "block pair head token element", heads/2, blockTokens)
	defer w.engine.Close()
	defer w.cache.Close() // first: a rank that has said so is no longer needed
	for block := range uint32(blocks) {
		w.list[0].IDs = append(w.list[0].IDs, block)
	}
	w.place = func(block, row int) (token, head int) {
		return block*blockTokens + row%blockTokens, rank*heads/2 + row/blockTokens
	}
	fmt.Println("ADDRESS", w.engine.Address())
	var text string
	must(fmt.Scan(&text))
	id := must(kv.ParseID(text))
	check(w.cache.Offer(id, w.list, nil))
	for layer := range layers {
		w.visit(layer, func(at *uint16, value uint16) { *at = value }) // the model's work
		time.Sleep(5 * time.Millisecond)
		if err := w.cache.ReadyLayers(id, uint32(layer), uint32(layer+1), tokens); err != nil {
			log.Print(err) // the offer has ended; its event says why
			break
		}
		if layer+1 == layers {
			check(w.cache.Seal(id, tokens))
		}
	}
	return w.end(ctx)
}

func decode(ctx context.Context, addresses []string) kv.EventKind {
	w := open(0, 1, "block pair token head element", blockTokens, heads)
	defer w.engine.Close()
	defer w.cache.Close() // first: a rank that has said so is no longer needed
	for block := range uint32(blocks) {
		w.list[0].IDs = append(w.list[0].IDs, blocks-1-block)
	}
	w.place = func(block, row int) (token, head int) {
		return (blocks-1-block)*blockTokens + row/heads, row % heads
	}
	var producers []ferry.Peer
	for _, address := range addresses {
		producers = append(producers, must(w.engine.Connect(ctx, address)))
	}
	id := must(kv.NewID())
	fmt.Println("ID", id)
	check(w.cache.Take(ctx, id, producers, w.list, tokens, &kv.TakeOptions{Layers: true}))
	kind := w.end(ctx)
	for layer := 0; kind == kv.EventReceived && layer < layers; layer++ {
		w.visit(layer, func(at *uint16, value uint16) {
			if *at != value {
				log.Fatalf("layer %d has %d instead of %d", layer, *at, value)
			}
		})
	}
	return kind
}

// end prints each event up to the terminal one, after which the blocks are the program's again.
func (w *worker) end(ctx context.Context) kv.EventKind {
	for event, err := range w.cache.Events(ctx) {
		check(err)
		if event.Terminal() {
			fmt.Println("ended:", event)
			return event.Kind
		}
		fmt.Println(event)
	}
	panic("the events end with an error or a terminal event")
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kind := kv.EventKind(0)
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "prefill":
		kind = prefill(ctx, must(strconv.Atoi(args[1])))
	case len(args) == 3 && args[0] == "decode":
		kind = decode(ctx, args[1:])
	default:
		log.Fatal("usage: kv_handoff prefill RANK | decode ADDRESS0 ADDRESS1")
	}
	if kind != kv.EventReceived && kind != kv.EventSent {
		os.Exit(3)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
