package cuda_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/stream/streamtest"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/workshop/cudatest/standin"
)

// outcome is all that a few steps leave: losses and gradient norms, and the state by bits.
type outcome struct {
	losses, norms []float64
	state         map[store.ID][]byte
	plan          *plan.Plan
}

// numerics returns the numerics of a golden batch: its rows are micro-batches.
func numerics(g *modeltest.Golden, compute tensor.DType) plan.Numerics {
	n := plan.Numerics{Compute: compute, Master: optim.F32, SequenceLen: len(g.First[0].IDs), MicroBatch: 1, MicroBatches: len(g.First),
		HeadChunk: 16, BlockChunk: 8}
	if compute == tensor.BF16 {
		n.Master = optim.Split
	}
	return n
}

// resident keeps what weights it can on the device, and the host updates all of them; updated keeps state there as
// well and has the device update what it can; streamed moves everything through one slot, what the first block keeps
// included, and has all rows between visits of groups in host memory.
func resident(p *plan.Placement) {
	for part := range p.Where.State {
		if p.Where.State[part][store.Weights] == plan.Device {
			p.Where.SetState(part, plan.Host)
		}
	}
}

func updated(p *plan.Placement) {
	p.HeadAtOnce = true
	for part := range p.Where.State {
		p.Where.SetState(part, plan.Device)
	}
}

func streamed(p *plan.Placement) {
	*p = plan.Smallest(len(p.Where.Weights), len(p.Where.Inputs), false)
	p.Rings.Activations, p.HeldAway = 1, nn.NormAway
	p.Where.Activations[0] = plan.Activations{Level: nn.KeepAttention, Place: plan.Host}
}

// train takes golden steps on devices, by rank, the CPU being the host's; without any it computes as well.
func train(t testing.TB, g *modeltest.Golden, n plan.Numerics, computes []device.Device, place func(*plan.Placement),
	steps int) outcome {
	t.Helper()
	m, fill := golden(t, g)
	return trainModel(t, plan.Request{Model: m, Numerics: n}, nil, fill, g, computes, place, steps)
}

// golden is the model of a golden file, and what reads its weights until the end of the test.
func golden(t testing.TB, g *modeltest.Golden) (*model.Model, func(*model.Part, model.Values) error) {
	t.Helper()
	m, err := model.Read(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := hf.OpenWeights(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if err := m.ReadConstants(w); err != nil {
		t.Fatal(err)
	}
	return m, func(part *model.Part, v model.Values) error { return m.ReadPart(w, part, v) }
}

// trainModel takes the steps of a golden file with the model of a request, whose weights fill reads; peers are the
// other hosts of its cluster.
func trainModel(t testing.TB, r plan.Request, peers stream.Peers, fill func(*model.Part, model.Values) error,
	g *modeltest.Golden, computes []device.Device, place func(*plan.Placement), steps int) outcome {
	t.Helper()
	e, kept, done := engine(t, r, peers, fill, computes, place)
	defer done()
	return takeSteps(t, e, kept, g, steps, nil)
}

// takeSteps takes the steps of a golden file, and does something after each of them, if it is told what.
func takeSteps(t testing.TB, e *stream.Engine, kept store.Store, g *modeltest.Golden, steps int, then func()) outcome {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := e.Plan
	o := outcome{state: map[store.ID][]byte{}, plan: p}
	for i, s := range g.Steps[:steps] {
		batch := &stream.Batch{Micro: s.Batch, Targets: s.Batch.TargetCount()}
		res, err := e.Step(context.Background(), batch, stream.Update{Step: i + 1, LR: s.LearningRate, MaxGradNorm: g.AdamW.MaxGradNorm,
			AdamW: optim.AdamW{Beta1: g.AdamW.Beta1, Beta2: g.AdamW.Beta2, Eps: g.AdamW.Eps, WeightDecay: g.AdamW.WeightDecay}})
		must(err)
		o.losses, o.norms = append(o.losses, res.LossSum/float64(batch.Targets)), append(o.norms, res.GradNorm)
		if then != nil {
			then()
		}
	}
	_, err := e.Flush(context.Background())
	must(err)
	for _, spec := range p.Extents() {
		if spec.Kind == store.GradSum {
			continue // nothing between steps
		}
		o.state[spec.ID] = make([]byte, spec.Bytes)
		must(stream.ReadExtent(context.Background(), kept, spec, o.state[spec.ID]))
	}
	return o
}

// engine opens an engine on devices, the CPU being the host's, with its store. The request lacks what is known of the
// devices and the machine. done closes all of it.
func engine(t testing.TB, r plan.Request, peers stream.Peers, fill func(*model.Part, model.Values) error,
	computes []device.Device, place func(*plan.Placement)) (e *stream.Engine, kept store.Store, done func()) {
	t.Helper()
	e, _, kept, done = engines(t, r, peers, fill, computes, place, plan.Outputs{})
	return e, kept, done
}

// engines is engine with a sampler that takes turns with it, if texts has caches: with all that it can on the device.
func engines(t testing.TB, r plan.Request, peers stream.Peers, fill func(*model.Part, model.Values) error,
	computes []device.Device, place func(*plan.Placement), texts plan.Outputs) (e, sampler *stream.Engine,
	kept store.Store, done func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	accounts := hostmem.New()
	host, err := cpu.New(cpu.Options{Workers: 2, Accounts: hostmem.New()})
	must(err)
	if computes == nil {
		computes = []device.Device{host}
	}
	r.Device, r.Devices, r.DeviceBytes = computes[0].Info(), len(computes), 256<<20
	r.Machine = plan.Machine{Name: "test", F32FLOPsPerSec: 1e11, BF16FLOPsPerSec: 2e11, AttentionFLOPsPerSec: 1e10,
		DeviceBytesPerSec: 1e10, UploadBytesPerSec: 1e10, DownloadBytesPerSec: 1e10, AdamWBytesPerSec: 1e10,
		HostBytesPerSec: 1e10}
	p, err := plan.New(context.Background(), r)
	must(err)
	changed := p.Placement
	place(&changed)
	p = p.With(changed)
	if texts.Continues() {
		q := r
		q.Model, q.Outputs, q.Over = r.Model.Frozen(), texts, p
		q.Numerics.SequenceLen, q.Numerics.MicroBatches = texts.LogitRows, 1
		of, err := plan.New(context.Background(), q)
		must(err)
		p = p.WithSampler(of, r.Device)
	}
	kept, _, err = stream.OpenStore(p, stream.StoreOptions{Accounts: accounts, Drives: []store.Drive{{Dir: t.TempDir()}}})
	must(err)
	must(stream.Fill(context.Background(), p, kept, fill))
	e, err = stream.New(stream.Config{Plan: p, Devices: computes, Host: host, Store: kept,
		Accounts: accounts, Peers: peers})
	must(err)
	if p.Sampler != nil {
		sampler, err = stream.New(stream.Config{Plan: p.Sampler, Devices: computes, Host: host, Store: kept,
			Accounts: accounts, Over: e})
		must(err)
	}
	return e, sampler, kept, func() {
		if sampler != nil {
			if err := sampler.Close(); err != nil {
				t.Errorf("sampler: %v", err)
			}
		}
		if err := e.Close(); err != nil {
			t.Errorf("engine: %v", err)
		}
		kept.Close()
		host.Close()
	}
}

// sameBits is the law: what moves, and when, changes no bit.
func sameBits(t *testing.T, what string, got, want outcome) {
	t.Helper()
	for i := range want.losses {
		if math.Float64bits(got.losses[i]) != math.Float64bits(want.losses[i]) || math.Float64bits(got.norms[i]) != math.Float64bits(want.norms[i]) {
			t.Errorf("%s: step %d: loss %v, norm %v; want %v, %v", what, i, got.losses[i], got.norms[i], want.losses[i], want.norms[i])
			break
		}
	}
	for id, bits := range want.state {
		if id.Kind == store.Grad && got.plan.StateResident(id.Part) {
			continue // it does not leave the device
		}
		if !bytes.Equal(got.state[id], bits) {
			t.Errorf("%s: %v of %s have other bits", what, id.Kind, want.plan.Model.Parts[id.Part].Name)
		}
	}
}

// near compares with the CPU device's losses and with PyTorch's, and with the CPU's norms. A norm is compared closely
// for the first steps alone: after these, updates have amplified what rounded otherwise. The fifth norm of cohere2 in
// bf16 is 1.40 on the CPU, 1.53 in the interpreter of the kernels and 1.69 on an H100, and 1.30 in fp32; the losses
// agree to 3e-4.
func near(t *testing.T, g *modeltest.Golden, n plan.Numerics, got, onCPU outcome) {
	t.Helper()
	tolerance, torch := 1e-4, 1e-4
	if n.Compute == tensor.BF16 {
		tolerance, torch = 1e-2, 2e-2
	}
	for i := range got.losses {
		if d := math.Abs(got.losses[i]/onCPU.losses[i] - 1); !(d <= tolerance) {
			t.Errorf("step %d: loss %v, on the CPU %v", i, got.losses[i], onCPU.losses[i])
		}
		if d := math.Abs(got.losses[i]/float64(g.Steps[i].Loss) - 1); !(d <= torch) {
			t.Errorf("step %d: loss %v, PyTorch %v", i, got.losses[i], g.Steps[i].Loss)
		}
		apart := 20 * tolerance
		if n.Compute == tensor.BF16 && i >= amplified {
			apart = 0.5
		}
		if d := math.Abs(got.norms[i]/onCPU.norms[i] - 1); !(d <= apart) {
			t.Errorf("step %d: norm %v, on the CPU %v", i, got.norms[i], onCPU.norms[i])
		}
	}
}

// amplified is the first step before which updates have amplified differences of rounding.
const amplified = 3

// trainingLaws: resident and streamed training have the same bits, which are near the CPU's and PyTorch's.
func trainingLaws(t *testing.T, variant string, compute tensor.DType, steps int, open func() device.Device) {
	g := modeltest.Load(t, variant)
	n := numerics(g, compute)
	opened := open()
	defer mustClose(t, opened)
	d := []device.Device{opened}
	first := train(t, g, n, d, resident, steps)
	if first.plan.Unified {
		t.Error("the plan takes the device for the host")
	}
	if !raceEnabled { // the detector looks for missing waits, and is slow
		near(t, g, n, first, train(t, g, n, nil, resident, steps))
		if !testing.Short() { // where it moves, it runs again as well
			sameBits(t, "again", train(t, g, n, d, resident, steps), first)
		}
	}
	here := train(t, g, n, d, updated, steps)
	sameBits(t, "updated on the device", here, first)
	if first.plan.AnyStateResident() || !here.plan.AnyStateResident() {
		t.Error("it is not the device that updates in one run, and the host in the other")
	}
	moved := train(t, g, n, d, streamed, steps)
	sameBits(t, "streamed", moved, first)
	if moved.plan.DeviceBytes >= first.plan.DeviceBytes {
		t.Errorf("streaming takes %d bytes of the device, keeping all %d", moved.plan.DeviceBytes, first.plan.DeviceBytes)
	}
}

// The engine turns a GPU as it turns the CPU.
func TestStandInTraining(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		variant string
		compute tensor.DType
		steps   int // with two, updates come before a forward pass
	}{{"mistral-window", tensor.BF16, 2}, {"qwen3_5", tensor.BF16, 2}, {"qwen3-bias-untied", tensor.F32, 1},
		{"deepseek_v3", tensor.F32, 2}, {"qwen3_5", tensor.F32, 1}, {"gpt2", tensor.F32, 1},
		{"gemma4-shared", tensor.F32, 1}, {"gemma4-mixture", tensor.F32, 1}} {
		if (testing.Short() || raceEnabled) && c.compute != tensor.BF16 {
			continue
		}
		steps := c.steps
		if raceEnabled || testing.Short() && c.variant != "mistral-window" {
			steps = 1
		}
		t.Run(c.variant+" "+c.compute.String(), func(t *testing.T) {
			trainingLaws(t, c.variant, c.compute, steps, func() device.Device { return open(t, standin.Options{}, library) })
		})
	}
}

// Parts that are smaller than a block, and cohorts of micro-batches: resident, updated, streamed and on two hosts, they
// have the same bits, and nearly the CPU's losses. Sums of cohorts are rounded to bf16 on the device.
func TestStandInGroups(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: TestStandInTraining runs the same lanes at once; make test runs this one")
	}
	t.Parallel()
	g := modeltest.Load(t, "llama-bias")
	n := numerics(g, tensor.BF16)
	n.Cohorts, n.Exchange = n.MicroBatches, tensor.BF16 // each micro-batch is a cohort, whose sums are rounded
	c, err := hf.ParseConfig("config.json", modeltest.PatchworkConfig(map[string]any{"vocab_size": g.Vocab,
		"hidden_size":       24,
		"intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "groups": 2}))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c, modeltest.Piecework)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(part *model.Part, v model.Values) error { m.InitPart(1, part, v); return nil }
	d := open(t, standin.Options{}, library)
	defer mustClose(t, d)
	run := func(on []device.Device, place func(*plan.Placement)) outcome {
		return trainModel(t, plan.Request{Model: m, Numerics: n}, nil, fill, g, on, place, 1)
	}
	gpu := []device.Device{d}
	first := run(gpu, resident)
	if onCPU := run(nil, resident); !(math.Abs(first.losses[0]/onCPU.losses[0]-1) <= 1e-2) {
		t.Errorf("loss %v, on the CPU %v", first.losses[0], onCPU.losses[0])
	}
	sameBits(t, "updated on the device", run(gpu, updated), first)
	sameBits(t, "streamed", run(gpu, streamed), first)

	network := streamtest.New(2)
	var hosts sync.WaitGroup
	for host := range 2 {
		hosts.Go(func() {
			defer network.End(host) // after a failure the other one does not wait
			got := trainModel(t, plan.Request{Model: m, Numerics: n, Cluster: plan.Cluster{Host: host, Hosts: 2}},
				network.Peers(host), fill, g, gpu, streamed, 1)
			want := first
			want.state = maps.Clone(first.state)
			maps.DeleteFunc(want.state, func(id store.ID, _ []byte) bool {
				return id.Kind != store.Weights && !got.plan.Owns(id.Part)
			})
			sameBits(t, fmt.Sprintf("host %d of 2", host), got, want)
		})
	}
	hosts.Wait()
}

// Micro-batches of padding that are left out, the first one of a step among them, change no bit. Others are computed as
// a whole, since products of other shapes have other bits.
func TestStandInPadding(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("with -race -short only: padding adds no lane to those that TestStandInTraining runs; make test runs this one")
	}
	t.Parallel()
	g := *modeltest.Load(t, "mistral-window")
	n := numerics(&g, tensor.BF16)
	g.Steps = slices.Clone(g.Steps[:2])
	for i := range g.Steps {
		micro := slices.Clone(g.Steps[i].Batch)
		micro[i%len(micro)] = batch.New(n.Positions())
		g.Steps[i].Batch = micro
	}
	d := open(t, standin.Options{}, library)
	defer mustClose(t, d)
	m, fill := golden(t, &g)
	var all outcome
	for _, place := range []func(*plan.Placement){resident, streamed} {
		e, kept, done := engine(t, plan.Request{Model: m, Numerics: n}, nil, fill, []device.Device{d}, place)
		e.AllRows = all.plan == nil
		got := takeSteps(t, e, kept, &g, 2, nil)
		done()
		if e.AllRows {
			all = got
		} else {
			sameBits(t, "without padding", got, all)
		}
	}
}

// Streams that pause at random moments give the bits that they give without.
func TestStandInPauses(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("the race detector finds a missing wait without pauses")
	}
	g := modeltest.Load(t, "mistral-window")
	n := numerics(g, tensor.BF16)
	var first outcome
	for seed := range uint64(2) {
		d := open(t, standin.Options{Seed: seed, MaxDelay: time.Duration(seed) * 300 * time.Microsecond}, library)
		got := train(t, g, n, []device.Device{d}, streamed, 1)
		mustClose(t, d)
		if seed == 0 {
			first = got
		}
		sameBits(t, "with pauses", got, first)
	}
}

// Several cards have the bits of one, whichever visits each has and wherever state waits.
func TestStandInCards(t *testing.T) {
	t.Parallel()
	var all []device.Device
	for _, card := range openCards(t, standin.Options{Cards: 3, Peers: true}, library) {
		all = append(all, card)
	}
	type dealt struct {
		deal  []int // forward of the blocks, the head, backward of the blocks
		place func(*plan.Placement)
		peers bool
	}
	for variant, deals := range map[string]map[string]dealt{
		"mistral-window": {
			"by block, updated there":      {plan.DealBlocks([]int{0, 1, 0}), updated, true},
			"by visit, streamed":           {[]int{0, 1, 0, 1, 1, 0, 1}, streamed, false},
			"each visit elsewhere":         {[]int{0, 1, 2, 0, 1, 2, 0}, streamed, false},
			"each visit elsewhere, direct": {[]int{0, 1, 2, 0, 1, 2, 0}, streamed, true},
		},
		"gemma4-shared": {
			"values that cross blocks":         {[]int{0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1}, streamed, false},
			"values that cross blocks, direct": {[]int{0, 1, 2, 0, 1, 2, 1, 0, 2, 0, 1}, streamed, true},
		},
	} {
		g := modeltest.Load(t, variant)
		n, steps := numerics(g, tensor.BF16), 2
		if raceEnabled || testing.Short() || variant == "gemma4-shared" {
			steps = 1 // and its update
		}
		one := train(t, g, n, all[:1], resident, steps)
		for name, c := range deals {
			cards := all[:1+slices.Max(c.deal)]
			got := train(t, g, n, cards, func(p *plan.Placement) {
				c.place(p)
				p.Deal, p.PeerCopies = c.deal, c.peers
			}, steps)
			sameBits(t, name, got, one)
			if !slices.Equal(got.plan.Placement.Deal, c.deal) || got.plan.PeerCopies() != c.peers {
				t.Errorf("%s: the deal is %v, with peer copies: %v", name, got.plan.Placement.Deal,
					got.plan.PeerCopies())
			}
		}
	}
}

// Cards that have a tile of the head each have the bits of one that has them all.
func TestStandInCardsDealTheHead(t *testing.T) {
	t.Parallel()
	g := modeltest.Load(t, "mistral-window")
	c, err := hf.ParseConfig("config.json", modeltest.PatchworkConfig(map[string]any{"vocab_size": 260,
		"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
		"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c, modeltest.Patchwork)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(part *model.Part, v model.Values) error { m.InitPart(1, part, v); return nil }
	var cards []device.Device
	for _, card := range openCards(t, standin.Options{Cards: 2, Peers: true}, library) {
		cards = append(cards, card)
	}
	run := func(on []device.Device, place func(*plan.Placement)) outcome {
		return trainModel(t, plan.Request{Model: m, Numerics: numerics(g, tensor.BF16)}, nil, fill, g, on, place, 1)
	}
	one := run(cards[:1], resident)
	for _, peers := range []bool{false, true} {
		got := run(cards, func(p *plan.Placement) {
			updated(p)
			p.Deal, p.HeadDeal, p.PeerCopies = []int{0, 1, 0, 1, 1}, []int{0, 1}, peers
		})
		sameBits(t, fmt.Sprint("direct ", peers), got, one)
		if place := got.plan.Placement; place.PeerCopies != peers || !slices.Equal(place.HeadDeal, []int{0, 1}) {
			t.Errorf("the head is dealt to %v, with peer copies: %v", place.HeadDeal, place.PeerCopies)
		}
	}
}

// A card that fails ends the step with an error that names it, and no lane hangs.
func TestStandInCardFails(t *testing.T) {
	for _, peers := range []bool{false, true} {
		t.Run(fmt.Sprint("peers ", peers), func(t *testing.T) { cardFails(t, peers) })
	}
}

func cardFails(t *testing.T, peers bool) {
	g := modeltest.Load(t, "mistral-window")
	cards := openCards(t, standin.Options{Cards: 2, Peers: peers}, library)
	m, fill := golden(t, g)
	e, _, done := engine(t, plan.Request{Model: m, Numerics: numerics(g, tensor.BF16)}, nil, fill,
		[]device.Device{cards[0], cards[1]}, func(p *plan.Placement) {
			streamed(p)
			p.Deal, p.PeerCopies = []int{0, 1, 0, 1, 1, 0, 1}, peers
		})
	defer done()
	step := func() error {
		batch := &stream.Batch{Micro: g.Steps[0].Batch, Targets: g.Steps[0].Batch.TargetCount()}
		_, err := e.Gradients(context.Background(), batch, 1)
		return err
	}
	if err := step(); err != nil {
		t.Fatal(err)
	}
	cards[1].gpu.Kill(1, driver.ECCUncorrectable)
	err := step()
	oneLine(t, err, "lane: ", "device cuda:1: ", "CUDA_ERROR_ECC_UNCORRECTABLE")
	if err != nil && strings.Contains(err.Error(), "cuda:0") {
		t.Errorf("the card that works is named: %v", err)
	}
}

// continuing: text a few positions at a time. The logits of a position are those that the CPU has for it. If bits are
// asked for, they are the same whichever positions its pass has, wherever caches wait, and in whichever blocks.
func continuing(t *testing.T, variant string, compute tensor.DType, bits bool, d device.Device) {
	g := modeltest.Load(t, variant)
	m, fill := golden(t, g)
	// Passes have that many of the next positions of each of two sequences.
	logits := func(computes []device.Device, place func(*plan.Placement), blocks [2][]int32,
		passes [][2]int) (all [2][][]float32) {
		n := numerics(g, compute)
		n.SequenceLen, n.MicroBatches = 8, 1
		out := plan.Outputs{LogitRows: 8, Caches: nn.Caches{Sequences: 2, Positions: 9}}
		if len(blocks[0]) > 0 {
			out.Caches.BlockRows, out.Caches.Blocks = 4, 7
		}
		e, _, done := engine(t, plan.Request{Model: m.Frozen(), Numerics: n, Outputs: out}, nil, fill, computes, place)
		defer done()
		for sequence, own := range blocks {
			if err := e.SetBlocks(sequence, own); err != nil {
				t.Fatal(err)
			}
		}
		for _, pass := range passes {
			var rows []stream.Position
			for sequence, count := range pass {
				for range count {
					at := len(all[sequence])
					rows = append(rows, stream.Position{Token: g.First[sequence].IDs[at], Sequence: sequence, At: at,
						Length: 9})
					all[sequence] = append(all[sequence], nil)
				}
			}
			got, err := e.Continue(context.Background(), rows, len(rows))
			if err != nil {
				t.Fatal(err)
			}
			for i, row := range rows {
				all[row.Sequence][row.At] = slices.Clone(got[i])
			}
		}
		return all
	}
	stay, move := func(*plan.Placement) {}, func(p *plan.Placement) {
		*p = plan.Smallest(len(p.Where.Weights), len(p.Where.Inputs), false)
	}
	mixed, apart := [][2]int{{3, 0}, {1, 4}, {2, 1}}, [][2]int{{0, 1}, {0, 1}, {0, 3}, {5, 0}, {1, 0}}
	gpu := []device.Device{d}
	inRows, inBlocks := [2][]int32{}, [2][]int32{{5, 1, 3}, {6, 4, 0}}
	first, moved := logits(gpu, stay, inRows, mixed), logits(gpu, move, inBlocks, apart)
	onCPU := logits(nil, stay, inRows, mixed)
	if bits && fmt.Sprint(moved) != fmt.Sprint(first) {
		t.Error("streamed, in other passes: other logits")
	}
	most, off := 0.0, 0.0
	for sequence, rows := range onCPU {
		for at, row := range rows {
			for i, x := range row {
				most = max(most, math.Abs(float64(x)))
				off = max(off, math.Abs(float64(first[sequence][at][i]-x)), math.Abs(float64(moved[sequence][at][i]-x)))
			}
		}
	}
	if limit := map[tensor.DType]float64{tensor.F32: 1e-4, tensor.BF16: 3e-2}[compute]; !(off <= limit*most) {
		t.Errorf("logits are %v off the CPU's, of which the largest is %v", off, most)
	}
	n := numerics(g, compute)
	n.SequenceLen, n.MicroBatches = 8, 1
	out := plan.Outputs{LogitRows: 8, Draws: true, Caches: nn.Caches{Sequences: 2, Positions: 9}}
	for name, place := range map[string]func(*plan.Placement){"resident": stay, "streamed": move} {
		e, _, done := engine(t, plan.Request{Model: m.Frozen(), Numerics: n, Outputs: out}, nil, fill, gpu, place)
		drawing(t, name, e, g, logits(gpu, place, inRows, [][2]int{{5, 3}}))
		done()
	}
}

// drawing: the positions of a pass draw tokens by their logits, with noise and without, of all but the last 3 tokens.
func drawing(t *testing.T, name string, e *stream.Engine, g *modeltest.Golden, logits [2][][]float32) {
	var rows []stream.Position
	var draws []device.TokenDraw
	for sequence, of := range logits {
		for at := range of {
			rows = append(rows, stream.Position{Token: g.First[sequence].IDs[at], Sequence: sequence, At: at, Length: 9})
			draws = append(draws, device.TokenDraw{Key: [2]uint32{8, 9}, Text: uint64(sequence) << 40, At: uint32(at),
				Inverse: []float32{0, 1, 0.5}[at%3]})
		}
	}
	vocab := len(logits[0][0]) - 3
	drawn, err := e.Draw(context.Background(), rows, draws, vocab)
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		d, x, most, sum := draws[i], logits[row.Sequence][row.At][:vocab], math.Inf(-1), 0.0
		scale := float64(d.Inverse)
		if scale == 0 {
			scale = 1
		}
		score := func(id int) float64 {
			if d.Inverse == 0 {
				return float64(x[id])
			}
			n := rng.Counter{uint32(id / 4), d.At, uint32(d.Text), uint32(d.Text >> 32)}
			return float64(x[id])*scale + rng.Gumbel(rng.Philox4x32(d.Key, n)[id%4])
		}
		for id := range x {
			most, sum = max(most, score(id)), sum+math.Exp(float64(x[id])*scale)
		}
		id := int(drawn[i].ID)
		if id < 0 || id >= vocab || score(id) < most-1e-4 {
			t.Errorf("%s: position %d of sequence %d draws %+v, which is not the best", name, row.At, row.Sequence, drawn[i])
		} else if want := float64(x[id])*scale - math.Log(sum); math.Abs(float64(drawn[i].LogProb)-want) > 1e-4 {
			t.Errorf("%s: token %d has the log-probability %v, want %v", name, id, drawn[i].LogProb, want)
		}
	}
}

// The engine continues sequences on a GPU as on the CPU.
func TestStandInContinues(t *testing.T) {
	t.Parallel()
	d := open(t, standin.Options{}, library)
	defer mustClose(t, d)
	for variant, compute := range map[string]tensor.DType{"qwen3_5": tensor.BF16, "gpt_oss": tensor.F32} {
		t.Run(variant, func(t *testing.T) { continuing(t, variant, compute, true, d) })
	}
}
