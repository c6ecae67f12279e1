package stream_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/stream/streamtest"
	"github.com/millrace/millrace/trace"
	"go.uber.org/goleak"
)

// cluster are the rigs of hosts, and what connects them.
type cluster struct {
	rigs    []*rig
	network *streamtest.Network
}

// onHost is the subject as a host of several has it.
func (s *subject) onHost(host, hosts int) *subject {
	c := *s
	c.cluster = plan.Cluster{Host: host, Hosts: hosts}
	return &c
}

// startHosts builds the engines of some hosts at once; setups are by host, and have no peers or what comes between
// these and the engine.
func startHosts(t errorer, s *subject, setups ...setup) *cluster {
	t.Helper()
	n := len(setups)
	c := &cluster{make([]*rig, n), streamtest.New(n)}
	c.each(t, func(t errorer, host int) {
		o := setups[host]
		between := o.peers
		o.peers = c.network.Peers(host)
		if between != nil {
			between.(*watched).Peers, o.peers = o.peers, between
		}
		c.rigs[host] = start(t, s.onHost(host, n), o)
	})
	return c
}

// each runs do for all hosts at once.
func (c *cluster) each(t errorer, do func(t errorer, host int)) {
	t.Helper()
	var all sync.WaitGroup
	for host := range c.rigs {
		all.Go(func() { do(ofHost{t, c.network, host}, host) })
	}
	all.Wait()
}

// ofHost is a test on a host's goroutine. When it fails, the host ends, as a process does.
type ofHost struct {
	errorer
	network *streamtest.Network
	host    int
}

func (t ofHost) Errorf(format string, args ...any) {
	t.errorer.Errorf("host %d: "+format, append([]any{t.host}, args...)...)
}

func (t ofHost) Fatal(args ...any) {
	t.network.End(t.host)
	t.Errorf("%s", fmt.Sprint(args...))
	runtime.Goexit()
}

func (c *cluster) close(t errorer) {
	for _, r := range c.rigs {
		if r != nil {
			r.close(t)
		}
	}
}

// train trains on all hosts, and returns what comes out of each.
func (c *cluster) train(t errorer, s *subject, steps int) []outcome {
	t.Helper()
	all := make([]outcome, len(c.rigs))
	c.each(t, func(t errorer, host int) { all[host] = train(t, c.rigs[host], s, steps) })
	return all
}

// sameOnHosts checks that each host has the results of the reference and all its weights, and of the rest of its state,
// and of what it saved, that of the parts that the host owns.
func sameOnHosts(t errorer, c *cluster, got []outcome, want outcome) {
	t.Helper()
	for host, of := range got {
		p, mine := c.rigs[host].plan, outcome{scalars: want.scalars, state: map[store.ID][]byte{}}
		for _, all := range want.saved {
			saved := map[store.ID][]byte{}
			for id, bits := range all {
				if p.Owns(id.Part) {
					saved[id] = bits
				}
			}
			mine.saved = append(mine.saved, saved)
		}
		for id, bits := range want.state {
			if id.Kind == store.Weights || p.Owns(id.Part) {
				mine.state[id] = bits
			}
		}
		t := ofHost{t, c.network, host}
		if len(of.state) > len(mine.state) {
			t.Errorf("there are %d extents, and are to be %d", len(of.state), len(mine.state))
		}
		sameBits(t, of, mine, p)
	}
}

// alternating deals blocks to two devices in turn.
func alternating(p *plan.Placement) {
	streamed(2)(p)
	ranks := make([]int, len(p.Where.Inputs))
	for i := range ranks {
		ranks[i] = i % 2
	}
	p.Deal = plan.DealBlocks(ranks)
}

// The law: a step has the same bits on any number of hosts that divides its cohorts, on any number of devices of each.
func TestHostsChangeNoBit(t *testing.T) {
	const steps = 3
	dev := newCPU(t)
	defer dev.Close()
	of := func(f model.Family) func(*shape) {
		return func(s *shape) { s.Type, s.families, s.Layers, s.BF16 = f.ModelType, []model.Family{f}, 6, true }
	}
	for name, change := range map[string]func(s *shape){
		"untied":        func(*shape) {},
		"untied, split": func(s *shape) { s.BF16, s.Grouped = true, true },
		"tied":          func(s *shape) { s.Type, s.Tied, s.Micro = "qwen3", true, 8 },
		"tied, split":   func(s *shape) { s.Type, s.Tied, s.BF16, s.Moments8, s.Split24 = "qwen3", true, true, true, true },
		"sums in bf16":  func(s *shape) { s.Narrow = true },
		"untied, split, sums in bf16": func(s *shape) { // with tokens that occur more than once in a group
			s.Narrow, s.BF16, s.Vocab, s.Micro = true, true, 40, 8
		},
		"tied, split, sums in bf16": func(s *shape) {
			s.Narrow, s.BF16, s.Type, s.Tied, s.Micro = true, true, "qwen3", true, 8
		},
		"frozen in part": func(s *shape) {
			s.BF16, s.Split24, s.FrozenBlocks, s.FrozenFFN, s.FrozenEmbed = true, true, 1, true, true
		},
		"frozen head": func(s *shape) { s.FrozenHead, s.Moments8, s.Unclipped = true, true, true },
		"experts":     of(modeltest.Balanced(modeltest.Mixtures(2))),
		"sides":       of(crossing),
	} {
		t.Run(name, func(t *testing.T) {
			s := tiny
			s.Micro, s.Cohorts = 4, 4
			change(&s)
			sub := s.subject(t, steps)
			ref := start(t, sub, setup{device: dev, change: streamed(1), serial: true})
			want := train(t, ref, sub, steps)
			ref.close(t)
			for _, on := range []struct {
				name  string
				hosts int
				setup
			}{
				{"bound", 2, setup{}},
				{"bound", 4, setup{}},
				{"streamed, serial", 2, setup{change: streamed(1), serial: true}},
				{"streamed", 4, setup{change: streamed(2)}},
				{"on disk", 2, setup{change: allOnDisk}},
				{"two devices", 2, setup{change: alternating}},
				{"two devices", 4, setup{change: alternating}},
			} {
				if testing.Short() && (on.hosts > 2 || on.serial) {
					continue // the others have all waits, too
				}
				t.Run(fmt.Sprintf("%d hosts, %s", on.hosts, on.name), func(t *testing.T) {
					on.device = dev
					c := startHosts(t, sub, slices.Repeat([]setup{on.setup}, on.hosts)...)
					defer c.close(t)
					sameOnHosts(t, c, c.train(t, sub, steps), want)
				})
			}
		})
	}
}

// told keeps the results of an engine's steps.
type told struct {
	Steps []stream.Result
	Probs [][]float32
	Bad   []int64 // weights, of flushes
}

// tell steps, and after all steps but the first evaluates and flushes.
func tell(t errorer, r *rig, s *subject) (all told) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range s.batches {
		res, err := r.engine.Step(context.Background(), b, s.updates[i])
		must(err)
		all.Steps = append(all.Steps, res)
		if i == 0 {
			continue
		}
		probs, err := r.engine.LogProbs(context.Background(), s.eval)
		must(err)
		for _, of := range probs {
			all.Probs = append(all.Probs, slices.Clone(of))
		}
		bad, err := r.engine.Flush(context.Background())
		must(err)
		all.Bad = append(all.Bad, bad)
	}
	return all
}

// Each host tells of a step what one process does: also where the norm is not finite, so that all skip the update, and
// where weights become NaN.
func TestHostsTellTheSame(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for _, lr := range []float64{1e-2, 1e30} {
		shape := tiny
		shape.families = []model.Family{modeltest.Balanced(modeltest.Mixtures(2))}
		shape.BF16, shape.Micro, shape.Cohorts = true, 4, 2
		shape.Type = shape.families[0].ModelType
		s := shape.subject(t, 3)
		s.outputs.LogProbs = true
		s.updates[0].LR = lr
		one := start(t, s, setup{device: dev, change: streamed(2)})
		want := tell(t, one, s)
		one.close(t)
		if skips := want.Steps[1].Skipped; skips != (lr > 1) || want.Steps[1].Loads == nil {
			t.Errorf("rate %v: the step is %+v", lr, want.Steps[1])
		}
		for name, change := range map[string]func(*plan.Placement){"bound": nil, "two devices": alternating} {
			other := setup{device: dev, change: streamed(1), serial: true, traced: true}
			c := startHosts(t, s, setup{device: dev, change: change, traced: true}, other)
			c.each(t, func(t errorer, host int) {
				if d := cmp.Diff(want, tell(t, c.rigs[host], s), cmpopts.EquateNaNs(),
					cmp.AllowUnexported(stream.Result{})); d != "" {
					t.Errorf("rate %v, %s: (-one process +host)\n%s", lr, name, d)
				}
				if lanes, _ := c.rigs[host].trace.TakeBusy(); lanes[trace.Send] == 0 || lanes[trace.Receive] == 0 {
					t.Errorf("%s: the lanes are busy for %+v", name, lanes)
				}
			})
			c.close(t)
		}
	}
}

// watched are peers that call before with the number of each operation.
type watched struct {
	stream.Peers
	n      atomic.Int64
	sent   atomic.Int64 // bytes
	before func(n int)
}

func (w *watched) Send(ctx context.Context, host int, b []byte) error {
	w.before(int(w.n.Add(1)))
	w.sent.Add(int64(len(b)))
	return w.Peers.Send(ctx, host, b)
}

func (w *watched) Receive(ctx context.Context, host int, b []byte) error {
	w.before(int(w.n.Add(1)))
	return w.Peers.Receive(ctx, host, b)
}

func (w *watched) Exchange(b []byte) ([][]byte, error) {
	w.before(int(w.n.Add(1)))
	return w.Peers.Exchange(b)
}

// Of a table that is only looked up, hosts send the rows of the tokens that a group has, each once, and of all other
// parts the whole sum. A first step has no weights to send.
func TestHostsSendRowsOfTokens(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	for _, narrow := range []bool{false, true} {
		shape := tiny
		shape.Micro, shape.Cohorts, shape.BF16, shape.Narrow = 4, 4, true, narrow
		s := shape.subject(t, 1)
		w := &watched{before: func(int) {}}
		o := setup{device: dev, change: streamed(2)}
		counted := o
		counted.peers = w
		c := startHosts(t, s, o, counted)
		c.each(t, func(t errorer, host int) {
			if _, err := c.rigs[host].engine.Step(context.Background(), s.batches[0], s.updates[0]); err != nil {
				t.Fatal(err)
			}
		})
		p, bytes := c.rigs[1].plan, int64(4)
		if narrow {
			bytes = 2
		}
		want, whole, rows := int64(0), int64(0), 0
		for part, known := range p.Model.Parts {
			if p.Owns(part) {
				continue
			}
			elems := known.Layout.StateElems
			for cohort := 2; cohort < 4; cohort++ {
				whole += elems * bytes
				if !known.Kind.LookedUp() {
					want += elems * bytes
					continue
				}
				table, tokens := known.Layout.Fields[0].Shape, map[int32]bool{}
				for _, token := range s.batches[0].Micro[cohort].IDs {
					if row := int(token) - known.FirstRow; row >= 0 && row < table[0] {
						tokens[token] = true
					}
				}
				rows += len(tokens)
				want += int64(len(tokens)*table[1]) * bytes
			}
		}
		sent := w.sent.Load()
		if sent != want || rows == 0 || sent >= whole {
			t.Errorf("%d bytes are sent, want %d with %d rows of tables; whole sums have %d", sent, want, rows, whole)
		}
		c.close(t)
	}
}

// sequences runs the sequence of all schedules on all hosts, of which one that fails ends, and returns the errors.
func (c *cluster) sequences(t errorer, s *subject) []error {
	all := make([]error, len(c.rigs))
	c.each(t, func(_ errorer, host int) {
		if all[host] = sequence(context.Background(), c.rigs[host], s); all[host] != nil {
			c.network.End(host)
		}
	})
	return all
}

// clusterSubject is a small step of several hosts.
func clusterSubject(t *testing.T, tied bool) *subject {
	shape := least(tied)
	shape.Micro, shape.Cohorts = 4, 4
	return shape.subject(t, 3)
}

// When a host ends, at any message, all others end with one line that names it or one that ended because of it.
func TestAHostEnds(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	for _, o := range []setup{{}, {change: streamed(2)}, {change: streamed(1), serial: true}} {
		o.device = dev
		const hosts, ends = 4, 1
		s := clusterSubject(t, o.serial)
		run := func(at int) (errs []error, messages int) {
			setups := slices.Repeat([]setup{o}, hosts)
			w := &watched{before: func(int) {}}
			setups[ends].peers = w
			c := startHosts(t, s, setups...)
			defer c.close(t) // a lease that is not given back panics here
			first := int(w.n.Load())
			w.before = func(n int) {
				if n == first+at {
					c.network.End(ends)
				}
			}
			return c.sequences(t, s), int(w.n.Load()) - first
		}
		errs, messages := run(-1)
		if err := errors.Join(errs...); err != nil || messages < 100 {
			t.Fatalf("%d messages, error %v", messages, err)
		}
		for at := 1; at <= messages; at += sample(messages, 20) {
			errs, _ := run(at)
			for host, err := range errs {
				if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), " has ended") {
					t.Errorf("host %d ended at its message %d: host %d has the error %v", ends, at, host, err)
				}
			}
		}
	}
}

// An operation of one host may fail: that host says which, and the others that it has ended.
func TestAHostFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	for name, o := range faultCases() {
		if name == "state resident" || name == "state passes" {
			continue // of one host alone
		}
		o.device = dev
		s := clusterSubject(t, name == "ring")
		run := func(failAt func(stream, op string, n int) error) []error {
			fails := o
			fails.wrap = func(d device.Device) device.Device { return devicetest.Faulty(d, failAt) }
			c := startHosts(t, s, fails, o)
			defer c.close(t)
			return c.sequences(t, s)
		}
		var mu sync.Mutex
		count := map[string]int{}
		if err := errors.Join(run(func(stream, _ string, n int) error {
			mu.Lock()
			defer mu.Unlock()
			count[stream] = n + 1
			return nil
		})...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for on, n := range count {
			for at := tables; at < n; at += sample(n, 6) {
				errs := run(func(stream, _ string, n int) error {
					if stream == on && n == at {
						return errInjected
					}
					return nil
				})
				if err := errs[0]; !errors.Is(err, errInjected) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: operation %d of %s fails, and the host has the error %v", name, at, on, err)
				}
				if err := errs[1]; err == nil || !strings.HasSuffix(err.Error(), "host 0 has ended") {
					t.Errorf("%s: operation %d of %s of host 0 fails, and host 1 has the error %v", name, at, on, err)
				}
			}
		}
	}
}

// A step that waits for a host which does not come ends with its context.
func TestCancelWhileAPeerIsSilent(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := clusterSubject(t, false)
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{before: func(int) {}}
	c := startHosts(t, s, setup{change: streamed(2), peers: w}, setup{change: streamed(2)})
	defer c.close(t)
	w.before = func(int) { cancel() }
	_, err := c.rigs[0].engine.Step(ctx, s.batches[0], s.updates[0])
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v", err)
	}
}

// cutShort has the last byte of an exchange missing.
type cutShort struct{ stream.Peers }

func (c cutShort) Exchange(b []byte) ([][]byte, error) {
	return c.Peers.Exchange(b[:max(len(b)-1, 0)])
}

// An engine is refused without the peers that its plan needs, and finds out that another one follows another plan.
func TestOtherPlansOfPeers(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	s := clusterSubject(t, false)
	p := newPlan(t, s.onHost(1, 2), dev.Info(), nil)
	_, err := stream.New(stream.Config{Plan: p, Devices: []device.Device{dev}, Host: dev})
	if err == nil || !strings.Contains(err.Error(), "the plan is for host 1 of 2, and the engine has no peers") {
		t.Errorf("without peers: %v", err)
	}
	w := &watched{before: func(int) {}}
	c := startHosts(t, s, setup{peers: w}, setup{})
	defer c.close(t)
	w.Peers = cutShort{w.Peers}
	c.each(t, func(t errorer, host int) {
		_, err := c.rigs[host].engine.Step(context.Background(), s.batches[0], s.updates[0])
		if err == nil || !strings.Contains(err.Error(), "they do not run the same program") {
			t.Errorf("%v", err)
		}
	})
	_, err = stream.Grads(context.Background(), c.rigs[0].plan, c.rigs[0].store, slices.Index(c.owners(), 1))
	if err == nil || !strings.Contains(err.Error(), "is on host 1, which owns the part") {
		t.Errorf("a gradient of the other host: %v", err)
	}
}

// owners are the owners of parts.
func (c *cluster) owners() (all []int) {
	for part := range c.rigs[0].plan.Model.Parts {
		all = append(all, c.rigs[0].plan.Owner(part))
	}
	return all
}

// chooser is a device that chooses algorithms for products.
type chooser struct {
	device.Device
	lines []string
}

func (c *chooser) TuneProducts([]device.Product, device.Mem) error { return nil }
func (c *chooser) Algorithms() []string                            { return c.lines }
func (c *chooser) UseAlgorithms(lines []string) error {
	c.lines = append(c.lines, lines...)
	return nil
}

// The devices of all hosts compute products as those of host 0.
func TestHostsTakeOverAlgorithms(t *testing.T) {
	dev := newCPU(t)
	defer dev.Close()
	s := clusterSubject(t, false)
	want := []string{"a: 1", "b: 2"}
	var devices [2]*chooser
	wrap := func(host int, lines ...string) func(device.Device) device.Device {
		return func(d device.Device) device.Device {
			devices[host] = &chooser{d, lines}
			return devices[host]
		}
	}
	c := startHosts(t, s, setup{device: dev, wrap: wrap(0, want...)}, setup{device: dev, wrap: wrap(1)})
	c.close(t)
	for host, d := range devices {
		if !slices.Equal(d.lines, want) {
			t.Errorf("host %d uses %q", host, d.lines)
		}
	}
}
