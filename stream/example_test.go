package stream_test

import (
	"context"
	"fmt"
	"log"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
)

// The engine by itself: a plan, a store with random weights, and the verbs Step, Eval, Logits, Save and Flush.
func ExampleEngine() {
	ctx := context.Background()
	config, err := hf.ReadConfig("../examples/library/tiny")
	if err != nil {
		log.Fatal(err)
	}
	m, err := model.New(config)
	if err != nil {
		log.Fatal(err)
	}
	accounts := hostmem.New()
	dev, err := cpu.New(cpu.Options{Accounts: accounts})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	p, err := plan.New(ctx, plan.Request{Model: m, Device: dev.Info(), Machine: probe.Guess(dev.Info()),
		HostBytes: 256 << 20, Outputs: plan.Outputs{LogitRows: 1},
		Numerics: plan.Numerics{Compute: tensor.F32, Master: optim.F32, Moments: optim.MomentsF32,
			SequenceLen: 16, MicroBatch: 1, MicroBatches: 1, HeadChunk: 16}})
	if err != nil {
		log.Fatal(err)
	}
	state, _, err := stream.OpenStore(p, stream.StoreOptions{Accounts: accounts})
	if err != nil {
		log.Fatal(err)
	}
	defer state.Close()
	err = stream.Fill(ctx, p, state, func(part *model.Part, v model.Values) error {
		m.InitPart(1, part, v)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := stream.New(stream.Config{Plan: p, Devices: []device.Device{dev}, Host: dev, Store: state, Accounts: accounts})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()

	// One document of five tokens. Each learns to predict the next one; the rest of the row is padding.
	tokens := []int32{11, 22, 33, 44, 55}
	micro := batch.New(p.Numerics.Positions())
	micro.SetDocument(0, tokens)
	copy(micro.Targets, tokens[1:])
	b := &stream.Batch{Micro: []batch.Micro{micro}, Targets: micro.Count()}

	adamW := optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}
	for step := 1; step <= 20; step++ {
		if _, err := engine.Step(ctx, b, stream.Update{Step: step, AdamW: adamW, LR: 1e-2, MaxGradNorm: 1}); err != nil {
			log.Fatal(err)
		}
	}
	lossSum, err := engine.Eval(ctx, b)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("learned:", lossSum/float64(b.Targets) < 0.5)

	logits, err := engine.Logits(ctx, b, 1)
	if err != nil {
		log.Fatal(err)
	}
	best := 0
	for token, logit := range logits[0] {
		if logit > logits[0][best] {
			best = token
		}
	}
	fmt.Println("after 11, 22 comes", best)

	// Save hands over the state of the next schedule, part by part.
	extents := 0
	engine.Save(func(context.Context, store.ID, uint64) error {
		extents++
		return nil
	})
	if _, err := engine.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("extents saved:", extents)
	// Output:
	// learned: true
	// after 11, 22 comes 33
	// extents saved: 15
}
