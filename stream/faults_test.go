package stream_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/devicetest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
	"go.uber.org/goleak"
)

var errInjected = errors.New("injected")

// least is a model whose steps have few operations, of every kind: with a block whose input leaves the device.
func least(tied bool) shape {
	s := tiny
	s.Vocab, s.Layers, s.Micro, s.HeadChunk, s.BF16, s.Tied = 130, 3, 1, 11, true, tied
	return s
}

// allOnDisk streams everything from disk and to it.
func allOnDisk(p *plan.Placement) {
	streamed(2)(p)
	for part := range p.Where.State {
		p.Where.SetState(part, plan.Disk)
	}
	for b := range p.Where.Inputs {
		p.Where.Inputs[b] = plan.Disk
	}
}

// sequence goes through all schedules: prologue, steady, flush, forward, prologue, flush.
func sequence(ctx context.Context, r *rig, s *subject) error {
	for i := range 3 {
		if _, err := r.engine.Step(ctx, s.batches[i], s.updates[i]); err != nil {
			return err
		}
		if i == 1 {
			if _, err := r.engine.Eval(ctx, s.eval); err != nil {
				return err
			}
		}
	}
	_, err := r.engine.Flush(ctx)
	return err
}

// fail runs the sequence on a rig that has a fault and checks that the engine ends as it should.
func fail(t *testing.T, s *subject, o setup, cause error) string {
	t.Helper()
	r := start(t, s, o)
	defer r.close(t) // a lease that is not given back panics here
	err := sequence(context.Background(), r, s)
	if err == nil {
		t.Fatal("the fault is not reported")
	}
	line := err.Error()
	if !errors.Is(err, cause) || strings.Contains(line, "\n") {
		t.Errorf("the error is %q", line)
	}
	if lane, _, _ := strings.Cut(line, " lane: "); !slices.Contains([]string{"fetch", "compute", "drain", "update"}, lane) {
		t.Errorf("the error does not begin with a lane: %q", line)
	}
	stopped := func(_ any, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "the engine stopped") || !errors.Is(err, cause) {
			t.Errorf("after a failure the engine continues: %v", err)
		}
	}
	stopped(r.engine.Step(context.Background(), s.batches[0], s.updates[0]))
	stopped(r.engine.Eval(context.Background(), s.eval))
	stopped(r.engine.Flush(context.Background()))
	return line
}

// operations counts the operations of each stream over the sequence.
func operations(t *testing.T, s *subject, o setup) map[string]int {
	t.Helper()
	var mu sync.Mutex
	count := map[string]int{}
	o.wrap = func(d device.Device) device.Device {
		return devicetest.Faulty(d, func(stream, op string, n int) error {
			mu.Lock()
			defer mu.Unlock()
			count[stream] = n + 1
			return nil
		})
	}
	r := start(t, s, o)
	defer r.close(t)
	if err := sequence(context.Background(), r, s); err != nil {
		t.Fatal(err)
	}
	return count
}

var all = flag.Bool("all", false, "try a fault at every operation and loan instead of a sample")

// sample returns the stride that picks about that number of tries out of n, a few under the race detector.
func sample(n, tries int) int {
	switch {
	case *all:
		return 1
	case raceEnabled || testing.Short():
		tries = max(tries/10, 1)
	}
	return 1 + n/tries
}

// tables is the number of operations of the fetch stream that belong to New.
const tables = 2

// faultCases are placements under which operations fail.
func faultCases() map[string]setup {
	return map[string]setup{
		"bound": {},
		"ring":  {change: streamed(2)},
		"kept": {change: func(p *plan.Placement) {
			streamed(2)(p)
			p.Rings.Activations = 2
			for b := range p.Where.Activations {
				p.Where.Activations[b] = plan.Activations{Level: nn.KeepAttention, Place: plan.Host}
			}
		}},
		"disk": {change: allOnDisk, files: func() vfs.FS { return vfs.NewMem() }},
		"resident": {change: func(p *plan.Placement) {
			streamed(1)(p)
			p.HeadAtOnce, p.Rings.Gradients, p.Rings.Rounded = true, 2, 2
			for part := range p.Where.Weights {
				p.Where.Weights[part] = plan.Device
			}
			for b := range p.Where.Inputs {
				p.Where.Inputs[b] = plan.Device
			}
		}},
		"state passes": {change: func(p *plan.Placement) {
			streamed(2)(p)
			p.Rings.State = 2
			for part := range p.Where.Updates {
				p.Where.Updates[part] = plan.Device
			}
		}},
		"state resident": {change: func(p *plan.Placement) {
			streamed(2)(p)
			p.HeadAtOnce = true
			for part := range p.Where.State {
				if part != 2 {
					p.Where.SetState(part, plan.Device)
				}
			}
		}},
	}
}

// Any operation may fail, in any schedule: the step says which one, the same one each time, and all is given back.
func TestEveryOperationMayFail(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	for name, o := range faultCases() {
		t.Run(name, func(t *testing.T) {
			o.device = dev
			s := least(name == "ring").subject(t, 3)
			count := operations(t, s, o)
			for _, stream := range slices.Sorted(maps.Keys(count)) {
				first, step := 0, sample(count[stream], 24)
				if stream == "fetch" {
					first = tables
				}
				for n := first; n < count[stream]; n += step {
					o := o
					o.wrap = func(d device.Device) device.Device {
						return devicetest.Faulty(d, func(on, op string, at int) error {
							if on == stream && at == n {
								return errInjected
							}
							return nil
						})
					}
					line := fail(t, s, o, errInjected)
					if !strings.HasPrefix(line, stream+" lane: ") {
						t.Errorf("the %s stream failed, the error is %q", stream, line)
					}
					if o.serial = true; n%4 != 0 {
						continue
					}
					if again := fail(t, s, o, errInjected); again != line {
						t.Errorf("operation %d of %s: overlapped %q, serial %q", n, stream, line, again)
					}
				}
			}
		})
	}
}

// Where several operations fail, the first one in the order of the schedule is reported, whichever fails first.
func TestFirstOfManyFaultsIsReported(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	o := setup{device: dev, change: streamed(2)}
	s := least(false).subject(t, 3)
	count := operations(t, s, o)
	for tenths := 1; tenths < 10; tenths += 2 {
		lines := map[string]int{}
		for seed := range uint64(4) {
			jitter := devicetest.Jitter(50*time.Microsecond, seed)
			o.serial = seed == 0
			o.wrap = func(d device.Device) device.Device {
				return devicetest.Faulty(d, func(stream, op string, n int) error {
					if n >= tables {
						if !o.serial {
							jitter(stream, op, n)
						}
						if n >= count[stream]*tenths/10 {
							return errInjected
						}
					}
					return nil
				})
			}
			lines[fail(t, s, o, errInjected)]++
		}
		if len(lines) != 1 {
			t.Errorf("%d tenths: %v", tenths, lines)
		}
	}
}

// A cancelled context ends a step at any operation.
func TestCancelAtEveryOperation(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	for name, o := range faultCases() {
		t.Run(name, func(t *testing.T) {
			o.device = dev
			s := least(name == "bound").subject(t, 3)
			count := operations(t, s, o)
			stopped, all := 0, 0
			for _, stream := range slices.Sorted(maps.Keys(count)) {
				for n := tables; n < count[stream]; n += sample(count[stream], 15) {
					ctx, cancel := context.WithCancel(context.Background())
					o := o
					o.wrap = func(d device.Device) device.Device {
						return devicetest.Faulty(d, func(on, op string, at int) error {
							if on == stream && at == n {
								cancel()
							}
							return nil
						})
					}
					r := start(t, s, o)
					err := sequence(ctx, r, s)
					all++
					// Operations that were enqueued before are finished, and may be the last ones of the sequence.
					if err != nil {
						stopped++
						if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "\n") {
							t.Errorf("operation %d of %s: %v", n, stream, err)
						}
					}
					r.close(t)
					cancel()
				}
			}
			if stopped < all/2 {
				t.Errorf("of %d cancelled sequences only %d ended early", all, stopped)
			}
		})
	}
}

// A context that is cancelled before a step leaves the engine as it was.
func TestCancelBeforeAStep(t *testing.T) {
	s := least(false).subject(t, 3)
	r := start(t, s, setup{change: streamed(2)})
	defer r.close(t)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.engine.Step(cancelled, s.batches[0], s.updates[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled step: %v", err)
	}
	if err := sequence(context.Background(), r, s); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// stingy is a store that refuses one of its loans.
type stingy struct {
	store.Store
	mu     sync.Mutex
	lent   map[loan]int
	refuse loan
	at     int // the loan of this number, of its kind
}

type loan struct {
	store.ID
	off    int64
	access store.Access
}

func (s *stingy) Borrow(ctx context.Context, lane trace.Worker, id store.ID, off, n int64, access store.Access,
	version uint64) (*store.Lease, error) {
	l := loan{id, off, access}
	s.mu.Lock()
	at := s.lent[l]
	s.lent[l]++
	s.mu.Unlock()
	if l == s.refuse && at == s.at {
		return nil, fmt.Errorf("read %v: %w", id, errInjected)
	}
	return s.Store.Borrow(ctx, lane, id, off, n, access, version)
}

// A store may fail to lend any extent at any time.
func TestEveryLoanMayFail(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	for name, o := range faultCases() {
		t.Run(name, func(t *testing.T) {
			o.device = dev
			s := least(name == "resident").subject(t, 3)
			var count map[loan]int
			wrap := func(refuse loan, at int) func(store.Store) store.Store {
				return func(inner store.Store) store.Store {
					w := &stingy{Store: inner, lent: map[loan]int{}, refuse: refuse, at: at}
					count = w.lent
					return w
				}
			}
			o.lend = wrap(loan{}, -1)
			r := start(t, s, o)
			if err := sequence(context.Background(), r, s); err != nil {
				t.Fatal(err)
			}
			r.close(t)
			loans := maps.Clone(count)
			tried := 0
			for l, n := range loans {
				for at := range n {
					if tried++; tried%sample(2*len(loans), 40) != 0 {
						continue
					}
					o := o
					o.lend = wrap(l, at)
					line := fail(t, s, o, errInjected)
					if o.serial = true; tried%4 != 0 {
						continue
					}
					if again := fail(t, s, o, errInjected); again != line {
						t.Errorf("loan %d of %v: overlapped %q, serial %q", at, l, line, again)
					}
				}
			}
			if tried < 50 {
				t.Errorf("only %d loans", tried)
			}
		})
	}
}

// A disk may fail to read or write at any time. The sequence then ends with that error, or is not concerned: what was
// read ahead in vain is read again.
func TestEveryDiskOperationMayFail(t *testing.T) {
	defer goleak.VerifyNone(t)
	dev := newCPU(t)
	defer dev.Close()
	s := least(true).subject(t, 3)
	run := func(fail int) (o outcome, ops int, err error) {
		disk := vfs.NewMem()
		r := start(t, s, setup{device: dev, change: allOnDisk, files: func() vfs.FS { return disk }})
		first := disk.Ops()
		if fail > 0 {
			var failing vfs.Op
			disk.Intercept(func(op vfs.Op) vfs.Outcome {
				if op.N == first+fail && op.Kind != vfs.OpClose {
					failing = op
				}
				// However often it is tried: the store reads and writes a piece more than once before it gives up.
				if failing.N > 0 && op.Kind == failing.Kind && op.Name == failing.Name {
					return vfs.Outcome{Err: errInjected}
				}
				return vfs.Outcome{}
			})
		}
		if err = sequence(context.Background(), r, s); err == nil {
			err = r.disk.Sync(context.Background())
		}
		ops = disk.Ops() - first
		disk.Intercept(nil)
		if err == nil {
			o = stateOf(t, r)
		}
		if err := r.engine.Close(); err != nil {
			t.Error(err)
		}
		if err := r.store.Close(); err != nil && !errors.Is(err, errInjected) {
			t.Error(err)
		}
		return o, ops, err
	}
	want, ops, err := run(0)
	if err != nil {
		t.Fatal(err)
	}
	failed, tried := 0, 0
	for n := 1; n < ops; n += sample(ops, 60) {
		tried++
		got, _, err := run(n)
		if err == nil {
			sameBits(t, got, want, newPlan(t, s, dev.Info(), nil))
			continue
		}
		failed++
		if !errors.Is(err, errInjected) || strings.Contains(err.Error(), "\n") {
			t.Errorf("operation %d: %q", n, err)
		}
	}
	t.Logf("%d of %d failing operations end the sequence, of %d", failed, tried, ops)
	if failed < tried/4 {
		t.Errorf("of %d failing operations only %d end the sequence", tried, failed)
	}
}
