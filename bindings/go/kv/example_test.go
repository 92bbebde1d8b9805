package kv_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"
	"unsafe"

	"ferry"
	"ferry/kv"
)

const (
	exampleLayers, exampleHeads, exampleElements, exampleBlocks = 2, 4, 8, 8
	exampleTokens                                               = 40
)

// A worker is an engine with a cache in memory of its own.
type worker struct {
	engine *ferry.Engine
	floats []float32
	cache  *kv.Cache
}

func openWorker(blockTokens uint32, order string, shape ...uint64) (*worker, error) {
	engine, err := ferry.Open(nil)
	if err != nil {
		return nil, err
	}
	const layers = exampleLayers
	layerBytes := 4 * exampleBlocks * 2 * int(blockTokens) * exampleHeads * exampleElements
	memory, err := engine.Alloc(layers*layerBytes, nil)
	if err != nil {
		return nil, err
	}
	desc := &kv.Description{
		Model: "llama", Cache: "fp32",
		Groups: []kv.Group{{Kind: kv.GroupFull, BlockTokens: blockTokens}},
	}
	for i := range layers { // an order is "block pair token head element", for example
		tensor := kv.Tensor{Address: memory.Address() + uint64(i*layerBytes), ElementBytes: 4, Shape: shape}
		desc.Layers = append(desc.Layers, kv.LayerOf(fmt.Sprintf("layers.%d", i), order, tensor))
	}
	layout, err := kv.NewLayout(desc)
	if err != nil {
		return nil, err
	}
	cache, err := kv.OpenCache(engine, layout, []*ferry.Memory{memory}, nil)
	if err != nil {
		return nil, err
	}
	floats := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(memory.Bytes()))), memory.Len()/4)
	return &worker{engine, floats, cache}, nil
}

func (w *worker) close() {
	if err := w.cache.Close(); err != nil {
		log.Fatal(err)
	}
	w.engine.Close()
}

// A prefill worker hands the cache of a sequence to a decode worker that has other blocks and another arrangement. Both
// are in one process here; between processes, only the address and the ID must be passed on.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	prefill, err := openWorker(16, "block pair head token element", exampleBlocks, 2, exampleHeads, 16, exampleElements)
	if err != nil {
		log.Fatal(err)
	}
	defer prefill.close()
	decode, err := openWorker(32, "block pair token head element", exampleBlocks, 2, 32, exampleHeads, exampleElements)
	if err != nil {
		log.Fatal(err)
	}
	defer decode.close()
	peer, err := decode.engine.Connect(ctx, prefill.engine.Address())
	if err != nil {
		log.Fatal(err)
	}
	id, err := kv.NewID() // drawn by the router
	if err != nil {
		log.Fatal(err)
	}
	if err := take(ctx, decode.cache, id, peer); err != nil {
		log.Fatal(err)
	}
	if err := prefill.cache.StartTimeline(4096); err != nil {
		log.Fatal(err)
	}
	compute := func(layer uint32) { // block 0 has token 16 first: its key, of head 2
		prefill.floats[int(layer)*len(prefill.floats)/exampleLayers+2*16*exampleElements] = 7
	}
	marked := func(layer uint32) {
		if err := mark(prefill.cache, id, layer, compute); err != nil {
			log.Fatal(err)
		}
	}
	if err := offer(prefill.cache, id, marked); err != nil {
		log.Fatal(err)
	}
	if err := await(ctx, decode.cache); err != nil {
		log.Fatal(err)
	}
	// Block 1 of the second layer: key, token 16, head 2.
	second := decode.floats[len(decode.floats)/2:]
	fmt.Println(second[((1*2+0)*32+16)*exampleHeads*exampleElements+2*exampleElements])
	picture, err := draw(prefill.cache)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Count(picture, `<rect class="compute"`), "layers were computed")
	// Output:
	// 7
	// 2 layers were computed
}

func mark(cache *kv.Cache, id kv.ID, layer uint32, compute func(layer uint32)) error {
	begin := time.Now()
	compute(layer)
	return cache.Mark(id, kv.MarkCompute, layer, begin, time.Now())
}

func draw(cache *kv.Cache) (string, error) {
	entries, err := cache.Timeline(0)
	if err != nil {
		return "", err
	}
	return kv.TimelineSVG(entries)
}

func take(ctx context.Context, cache *kv.Cache, id kv.ID, producer ferry.Peer) error {
	const tokens = exampleTokens
	err := cache.Take(ctx, id, []ferry.Peer{producer}, []kv.BlockList{{IDs: []uint32{1, 6}}}, tokens, nil)
	return err
}

func offer(cache *kv.Cache, id kv.ID, compute func(layer uint32)) error {
	const layers, tokens = exampleLayers, exampleTokens
	if err := cache.Offer(id, []kv.BlockList{{IDs: []uint32{5, 0, 3}}}, nil); err != nil {
		return err
	}
	for layer := range uint32(layers) {
		compute(layer)
		if err := cache.ReadyLayers(id, layer, layer+1, tokens); err != nil { // and the layer goes
			return err
		}
	}
	return cache.Seal(id, tokens)
}

func await(ctx context.Context, cache *kv.Cache) error {
	for event, err := range cache.Events(ctx) {
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, event)
		if event.Terminal() { // the blocks are yours again
			return event.Err()
		}
	}
	return nil
}
