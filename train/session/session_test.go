package session_test

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
	"github.com/millrace/millrace/vfs"
)

// ok ends a test at an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mill is a small model with what a run of it needs.
type mill struct {
	env   *session.Env
	lines []string // that the run tells
	src   *source.Source
	dev   *session.Devices
	c     *runfile.Config
}

func newMill(t *testing.T, more string) *mill {
	t.Helper()
	m := &mill{env: traintest.NewEnv(t)}
	m.env.Events = func(e session.Event) { m.lines = append(m.lines, e.String()) }
	m.env.Tests.ProgramBytes = 1 << 20
	var err error
	m.src, err = source.OpenModel(t.Context(), m.env, traintest.WriteModel(t, nil))
	ok(t, err)
	m.dev, err = m.env.OpenDevices("")
	ok(t, err)
	t.Cleanup(func() { ok(t, m.dev.Close()) })
	m.c, err = traintest.ConfigOf(t, "model: "+m.src.Dir+"\noutput_dir: "+t.TempDir()+
		"\ndatasets:\n  - path: "+traintest.Corpus(t)+"\n    type: text\n"+
		"sequence_len: 32\nbatch_tokens: 256\nmax_steps: 4\n"+more)
	ok(t, err)
	return m
}

// plan plans the run, with memory for samples.
func (m *mill) plan(t *testing.T, samples session.SampleMemory) (*plan.Plan, error) {
	t.Helper()
	return m.env.MakePlan(t.Context(), m.c, m.src.Model, tensor.F32, 4, plan.Outputs{}, samples, false, false,
		m.dev.Info(), 1)
}

// open opens a session of a plan, whose weights are the model's.
func (m *mill) open(t *testing.T, p *plan.Plan) *session.Session {
	t.Helper()
	s, err := source.OpenModelSession(t.Context(), m.env, p, m.dev, []string{t.TempDir()}, m.src)
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// told reports whether the run has told something.
func (m *mill) told(part string) bool { return strings.Contains(strings.Join(m.lines, "\n"), part) }

// Sizes of steps follow from all that a machine has, and not from what is left of it now: a plan has them or is
// refused,
// with the budgets that would choose smaller ones.
func TestSizesFollowFromTheMachine(t *testing.T) {
	m := newMill(t, "")
	const total = 1 << 30
	left := int64(total)
	m.env.Tests.Memory = func() (int64, int64) { return left, total }
	whole, err := m.plan(t, session.SampleMemory{})
	ok(t, err)
	if whole.Space == nil || whole.Space.FreeBytes == nil || whole.Space.Checkpoints != 1 || whole.Space.Models != 1 ||
		whole.Space.StateBytes != 0 {
		t.Errorf("on disk it takes %+v", whole.Space)
	}
	m.c.Save.Keep = 0
	if p, err := m.plan(t, session.SampleMemory{}); err != nil || !p.Space.AllKept || whole.Space.AllKept {
		t.Errorf("a run that keeps all checkpoints takes %+v, %v", p.Space, err)
	}
	m.c.Save.Keep = 2
	need := whole.ProcessBytes()
	refused := false
	for left = need + need/5; left > need/3; left -= need / 60 {
		p, err := m.plan(t, session.SampleMemory{})
		if err == nil {
			if p.Numerics.MicroBatch != whole.Numerics.MicroBatch || p.Numerics.HeadChunk != whole.Numerics.HeadChunk {
				t.Errorf("with %d bytes left sizes are %+v", left, p.Numerics)
			}
			continue
		}
		refused = refused || strings.Contains(err.Error(), "or set memory.host=")
	}
	if !refused {
		t.Error("no machine is too full for sizes that it is for")
	}
	tokens, err := m.env.Accounts.Reserve(data.TokensPurpose, 1<<20)
	ok(t, err)
	left, m.c.Memory.Host = total, runfile.Bytes{N: need + 1<<18}
	_, err = m.plan(t, session.SampleMemory{})
	if err == nil || !strings.Contains(err.Error(), "next to the 1.0 MiB of tokens in memory: have a token cache") ||
		!strings.Contains(err.Error(), "set numerics.micro_batch=") {
		t.Errorf("tokens that leave no room for steps: %v", err)
	}
	ok(t, tokens.Close())
	m.c.Memory.Host = runfile.Bytes{N: need * 3 / 4}
	if p, err := m.plan(t, session.SampleMemory{}); err == nil && p.ProcessBytes() > need*3/4 {
		t.Errorf("a budget of %d bytes has a plan of %d", need*3/4, p.ProcessBytes())
	}
	m.c.Memory.Host = runfile.Bytes{N: 1 << 20}
	if err := m.env.CheckFits(t.Context(), m.c, m.src.Model, session.SampleMemory{}, false, m.dev.Info()); err == nil {
		t.Error("a run of a few MB fits into one")
	}
	m.c.Memory.Host = runfile.Bytes{N: total}
	ok(t, m.env.CheckFits(t.Context(), m.c, m.src.Model, session.SampleMemory{}, false, m.dev.Info()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.env.MakePlan(ended, m.c, m.src.Model, tensor.F32, 4, plan.Outputs{}, session.SampleMemory{}, false,
		false,
		m.dev.Info(), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// A plan has host memory for a round of answers, also where a server samples them. It changes no size of a step.
func TestRoundsOfServersTakeMemory(t *testing.T) {
	m := newMill(t, "")
	round := session.SampleMemory{For: "rl", Bytes: 3 << 20}
	m.c.Memory.Host = runfile.Bytes{N: 64 << 20}
	without, err := m.plan(t, session.SampleMemory{})
	ok(t, err)
	with, err := m.plan(t, round)
	ok(t, err)
	if got := with.ProcessBytes() - without.ProcessBytes(); got != round.Bytes || with.Numerics != without.Numerics {
		t.Errorf("a round of %d bytes makes the plan %d bytes larger, with the numerics %+v", round.Bytes, got, with.Numerics)
	}
	ok(t, m.env.CheckFits(t.Context(), m.c, m.src.Model, round, false, m.dev.Info()))
	round.Bytes = 64 << 20
	_, err = m.plan(t, round)
	early := m.env.CheckFits(t.Context(), m.c, m.src.Model, round, false, m.dev.Info())
	for _, err := range []error{err, early} {
		if err == nil || !strings.HasPrefix(err.Error(), "rl: the steps fit without the prompts and answers of a round, "+
			"and with their 64.0 MiB they do not:") || strings.Contains(err.Error(), "\n") {
			t.Errorf("a round that does not fit: %v", err)
		}
	}
}

// A request for a plan has the budgets, or the memory that the machine has left; memory that grows is told of once.
func TestPlanRequest(t *testing.T) {
	m := newMill(t, "")
	m.env.Tests.Memory = func() (int64, int64) { return 1 << 30, 1 << 31 }
	n, err := m.c.StepNumerics()
	ok(t, err)
	ask := func(mem runfile.Memory) plan.Request {
		t.Helper()
		r, err := m.env.PlanRequest(m.src.Model, n, m.dev.Info(), 1, mem)
		ok(t, err)
		return r
	}
	r := ask(runfile.Memory{})
	if least := int64(1<<30) / 10 * 9; r.HostBytes < least-10 || r.HostBytes > least+2<<20 || r.ProgramBytes != 1<<20 ||
		r.DiskBytes != 0 || r.RecomputeAll {
		t.Errorf("of 1 GiB it asks for %+v", r)
	}
	tokens, err := m.env.Accounts.Reserve(data.TokensPurpose, 8<<20)
	ok(t, err)
	// The process has those already, so that they take nothing of what is left.
	if with := ask(runfile.Memory{}); with.TokenBytes != 8<<20 || with.HostBytes < r.HostBytes+7<<20 ||
		with.HostBytes > r.HostBytes+8<<20 {
		t.Errorf("with %d bytes of tokens it asks for %d, and without for %d", with.TokenBytes, with.HostBytes, r.HostBytes)
	}
	ok(t, tokens.Close())
	m.env.Cluster = &hosts.Cluster{Hosts: 2, Local: []int{0, 1}}
	if half := ask(runfile.Memory{}).HostBytes; half > r.HostBytes*6/10 {
		t.Errorf("two processes ask for %d bytes each of %d", half, r.HostBytes)
	}
	m.env.Cluster = nil
	m.env.MemoryGrows = true
	for range 2 {
		ask(runfile.Memory{})
	}
	if got := strings.Count(strings.Join(m.lines, "\n"), "memory.host: auto is"); got != 1 {
		t.Errorf("it is told %d times that memory grows", got)
	}
	if r := ask(runfile.Memory{Host: runfile.Bytes{N: 77}, Recompute: "always"}); r.HostBytes != 77 || !r.RecomputeAll {
		t.Errorf("a budget of 77 bytes asks for %+v", r)
	}
}

// Samples have caches in a plan whose steps are those without them; where they have no room, the error says so.
func TestSamplesInAPlan(t *testing.T) {
	m := newMill(t, "")
	plain, err := m.plan(t, session.SampleMemory{})
	ok(t, err)
	p, err := m.plan(t, session.SampleMemory{Caches: nn.Caches{Sequences: 4, Positions: 50}})
	ok(t, err)
	if p.Outputs.Caches.Sequences != 4 || p.Outputs.LogitRows != 4 || p.Outputs.Caches.Positions != 50 ||
		p.Numerics.MicroBatch != plain.Numerics.MicroBatch || p.Numerics.HeadChunk != plain.Numerics.HeadChunk {
		t.Errorf("it has %+v and steps of %+v, without samples %+v", p.Outputs, p.Numerics, plain.Numerics)
	}
	also := plan.Outputs{LogitRows: 3, LogProbs: true}
	p, err = m.env.MakePlan(t.Context(), m.c, m.src.Model, tensor.F32, 4, also, session.SampleMemory{}, false, false,
		m.dev.Info(), 1)
	if err != nil || p.Outputs.LogitRows != 3 || !p.Outputs.LogProbs {
		t.Errorf("rows of logits of a caller: %+v, %v", p.Outputs, err)
	}
	much := session.SampleMemory{Caches: nn.Caches{Sequences: 4, Positions: 50}, Bytes: 1 << 50}
	if _, err := m.plan(t, much); err == nil || !strings.Contains(err.Error(), "samples: the steps fit without them") ||
		!strings.Contains(err.Error(), "a text of 50 positions") {
		t.Errorf("samples without room: %v", err)
	}
	m.c.Memory.Host = runfile.Bytes{N: 1 << 30}
	err = m.env.CheckFits(t.Context(), m.c, m.src.Model, much, false, m.dev.Info())
	if err == nil || !strings.Contains(err.Error(), "samples: ") {
		t.Errorf("samples without room: %v", err)
	}
}

// The loss over data is the mean of all targets, whatever the batches; it ends where the run is asked to stop.
func TestEvaluateData(t *testing.T) {
	m := newMill(t, "")
	r, err := m.src.OpenReader(&runfile.Config{Tokenizer: "bytes"})
	ok(t, err)
	d, err := source.Prepare(t.Context(), m.env, "the data", []data.Source{{Path: traintest.Corpus(t), Type: "text"}}, r)
	ok(t, err)
	defer d.Close()
	rows, err := data.NewEvalLoader(d, data.EvalOptions{SequenceLen: 64, Accounts: m.env.Accounts})
	ok(t, err)
	defer rows.Close()
	n, err := runfile.NumericsOf("f32", "f32")
	ok(t, err)
	n.SequenceLen = 64
	var all []session.Loss
	for _, most := range []int{rows.Rows(), 3} {
		p, err := m.env.FitForward(t.Context(), m.src.Model.Frozen(), n, most, m.dev, runfile.Memory{}, plan.Outputs{})
		ok(t, err)
		s := m.open(t, p)
		for range 2 {
			l, err := s.Evaluate(t.Context(), []session.EvalSet{{Rows: rows}}, "the data")
			ok(t, err)
			all = append(all, l)
		}
		var shown strings.Builder
		m.env.Progress, m.env.Terminal, m.env.Tests.Watch = &shown, true, &hours{}
		_, err = s.Evaluate(t.Context(), []session.EvalSet{{Rows: rows}}, "the data")
		ok(t, err)
		m.env.Progress, m.env.Terminal, m.env.Tests.Watch = io.Discard, false, nil
		if !strings.Contains(shown.String(), "evaluating the data") {
			t.Errorf("it shows %q", shown.String())
		}
		stop := make(chan struct{})
		close(stop)
		m.env.Stop = stop
		_, err = s.Evaluate(t.Context(), []session.EvalSet{{Rows: rows}}, "the data")
		if !errors.Is(err, hosts.ErrInterrupted) {
			t.Errorf("asked to stop it ends with %v", err)
		}
		m.env.Stop = nil
	}
	for _, l := range all {
		if l.TargetTokens != d.TargetTokens() || l.Tokens != d.Tokens() || math.Abs(l.Perplexity-math.Exp(l.Loss)) > 1e-9 ||
			math.Abs(l.Loss-all[0].Loss) > 1e-5 || l.Loss < 4 || l.Loss > 9 {
			t.Errorf("the loss is %+v, and %+v at first; %d targets of %d tokens", l, all[0], d.TargetTokens(), d.Tokens())
		}
	}
}

// hours is a clock that is an hour later each time that it is read.
type hours struct{ n atomic.Int64 }

func (h *hours) Now() time.Time { return time.Unix(3600*h.n.Add(1), 0) }

func (h *hours) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

// weightsOf are the weights in a session's store.
func weightsOf(t *testing.T, s *session.Session) (all []byte) {
	t.Helper()
	for spec := range s.State() {
		if spec.Kind != store.Weights {
			continue
		}
		for off, n := range spec.Pieces() {
			l, err := s.Store.Borrow(t.Context(), trace.Update.Of(0), spec.ID, off, n, store.Read, s.Store.Version(spec.ID))
			ok(t, err)
			all = append(all, l.Bytes()...)
			l.Release()
		}
	}
	return all
}

// The state of a session goes to a checkpoint, and another session continues with it. One of another model, or with
// other devices, is refused or told of.
func TestStateGoesToACheckpoint(t *testing.T) {
	m := newMill(t, "")
	p, err := m.plan(t, session.SampleMemory{})
	ok(t, err)
	s := m.open(t, p)
	var kinds []store.Kind
	owned := 0
	for spec := range s.State() {
		kinds = append(kinds, spec.Kind)
	}
	for range s.Owned() {
		owned++
	}
	if slices.Contains(kinds, store.Grad) || slices.Contains(kinds, store.GradSum) || !slices.Contains(kinds,
		store.Weights) ||
		!slices.Contains(kinds, store.FirstMoment) || owned != len(kinds) {
		t.Errorf("the state is of kinds %v, of which the host owns %d", kinds, owned)
	}
	d, err := checkpoint.Acquire(vfs.OS{}, t.TempDir(), checkpoint.Owner{Run: checkpoint.NewRunID()})
	ok(t, err)
	defer d.Close()
	w, err := d.Create(1, checkpoint.Specs(p.Model, slices.Collect(s.State()), p.Whole.Scheme().Forms()))
	ok(t, err)
	for spec := range s.Owned() {
		failed, err := s.CopyExtent(t.Context(), w, spec, s.Store.Version(spec.ID))
		ok(t, errors.Join(failed, err))
	}
	manifest := checkpoint.Manifest{ComputedOn: "another device",
		Model: checkpoint.Identify(p.Model, m.src.Config.Raw(), "")}
	at, err := w.Commit(manifest)
	ok(t, err)
	from, err := checkpoint.Open(vfs.OS{}, at)
	ok(t, err)
	continued, err := m.env.OpenSession(t.Context(), p, m.dev, session.SessionOptions{
		Fill: func(ctx context.Context, s *session.Session) error { return s.Resume(ctx, from) }})
	ok(t, err)
	defer func() { ok(t, continued.Close()) }()
	if want, got := weightsOf(t, s), weightsOf(t, continued); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("it continues with other weights: %d bytes of %d", len(got), len(want))
	}
	if ok(t, s.StopEngine()); s.Engine != nil {
		t.Error("a session without an engine has one")
	}
	if !m.told("the checkpoint was computed on another device, and this run computes on ") {
		t.Errorf("it tells %q", m.lines)
	}
	other := newMill(t, "")
	other.src, err = source.OpenModel(t.Context(), other.env, traintest.WriteModel(t, map[string]any{"hidden_size": 64}))
	ok(t, err)
	p, err = other.plan(t, session.SampleMemory{})
	ok(t, err)
	_, err = other.env.OpenSession(t.Context(), p, other.dev, session.SessionOptions{
		Fill: func(ctx context.Context, s *session.Session) error { return s.Resume(ctx, from) }})
	if err == nil || !strings.Contains(err.Error(), "it is of another model or precision") {
		t.Errorf("a checkpoint of another model: %v", err)
	}
}
