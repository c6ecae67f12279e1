package plan_test

import (
	"context"
	"fmt"
	"log"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// A plan of a published shape on a named machine, in sizes of the caller's choice. [plan.Fitting] chooses them instead.
func ExampleNew() {
	text, err := plan.Shape("qwen2.5-7b")
	if err != nil {
		log.Fatal(err)
	}
	config, err := hf.ParseConfig("qwen2.5-7b", text)
	if err != nil {
		log.Fatal(err)
	}
	m, err := model.New(config)
	if err != nil {
		log.Fatal(err)
	}
	machine, err := plan.FindMachine("rtx3090-pc-24gb-64gb")
	if err != nil {
		log.Fatal(err)
	}
	p, err := plan.New(context.Background(), plan.Request{
		Model: m, Device: machine.Device, Machine: machine.Machine,
		Numerics: plan.Numerics{Compute: tensor.BF16, Master: optim.Split, Moments: optim.MomentsF32,
			SequenceLen: 2048, MicroBatch: 1, MicroBatches: 8, HeadChunk: 512},
		DeviceBytes: machine.DeviceBytes, HostBytes: machine.HostBytes, DiskBytes: machine.DiskBytes,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("positions of a step:", p.Numerics.StepPositions())
	fmt.Println("within the budgets:", p.DeviceTotalBytes() <= p.DeviceBudget, p.HostBytes <= p.HostBudget,
		p.DiskBytes <= p.DiskBudget)
	fmt.Println("operations of a step:", len(p.Schedule(plan.Steady).Ops) > 100)
	// Output:
	// positions of a step: 16384
	// within the budgets: true true true
	// operations of a step: true
}
