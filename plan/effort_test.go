package plan

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/tensor"
)

// named is a request for a published shape on a named machine.
func named(t *testing.T, shape, machine string, n Numerics) Request {
	t.Helper()
	text, err := Shape(shape)
	if err != nil {
		t.Fatal(err)
	}
	config, err := hf.ParseConfig(shape, text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(config)
	if err != nil {
		t.Fatal(err)
	}
	on, err := FindMachine(machine)
	if err != nil {
		t.Fatal(err)
	}
	n.Compute, n.Master = tensor.BF16, optim.Split
	return Request{Model: m, Numerics: n, Device: on.Device, Machine: on.Machine, ProgramBytes: WhatIfProgramBytes,
		DeviceBytes: on.DeviceBytes, HostBytes: on.HostBytes, DiskBytes: on.DiskBytes}
}

// endsAt is a context that has ended from the n-th time on that it is asked.
type endsAt struct {
	context.Context
	n, asked int
	ended    func()
}

func (c *endsAt) Err() error {
	c.asked++
	if c.asked < c.n {
		return nil
	}
	if c.asked == c.n {
		c.ended()
	}
	return context.Canceled
}

// A search whose context has ended does no more work worth the name, wherever it is.
func TestSearchEndsWithItsContext(t *testing.T) {
	r := named(t, "qwen2.5-14b", "rtx3090-pc-24gb-64gb", Numerics{SequenceLen: 2048, MicroBatch: 1, MicroBatches: 4, HeadChunk: 512})
	for what, search := range map[string]func(*chooser) error{
		"New": func(c *chooser) error { _, err := c.choose(true); return err },
		"Mend": func(c *chooser) error {
			c.HostBytes, c.DiskBytes = 1<<30, 0
			c.mend()
			return c.ctx.Err()
		},
	} {
		whole := &endsAt{Context: context.Background(), n: 1 << 40}
		if err := search(&chooser{Request: r, ctx: whole}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if whole.asked < 10 {
			t.Errorf("%s looks at its context %d times", what, whole.asked)
		}
		for n := 1; n < whole.asked; n += max(whole.asked/10, 1) {
			var then effort
			c := &chooser{Request: r}
			c.ctx = &endsAt{Context: context.Background(), n: n, ended: func() { then = c.effort }}
			if err := search(c); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: ended the %dth time of %d: %v", what, n, whole.asked, err)
			}
			if c.effort.operations > then.operations || c.effort.placements > then.placements+8 {
				t.Errorf("%s: ended the %dth time of %d at %+v, and did more up to %+v", what, n, whole.asked, then, c.effort)
			}
		}
	}
}
