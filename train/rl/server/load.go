package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"
)

// errUnknown says that a server cannot tell something.
var errUnknown = errors.New("the server cannot tell")

// loaded are the weights that a server has.
type loaded struct {
	version  int64
	dir      string
	manifest *Manifest         // nil: the directory has none
	digests  map[string]string // of the server; nil: it cannot tell
}

// Handover tells what is known of weights that a server has taken over.
type Handover struct {
	Version int64
	Seconds float64
	// Tensors counts those that the server has with the very bytes that were written, and Moved those whose checksum at
	// the server has changed since the hand-over before, as it has in the files.
	Tensors, Moved int
	// Mean and Most are of the absolute differences between the log-probabilities of a short text at the server and at the
	// trainer, in nats; NaN where no trainer computes them.
	Mean, Most float64
}

// Checked says in a line how a hand-over was checked.
func (h *Handover) Checked() string {
	text := "the server took it"
	switch {
	case h.Tensors > 0:
		text = fmt.Sprintf("%d tensors of the server have the bytes of the files", h.Tensors)
	case h.Moved > 0:
		text = fmt.Sprintf("%d tensors of the server have changed, as in the files", h.Moved)
	}
	if !math.IsNaN(h.Mean) {
		text += fmt.Sprintf("; its log-probabilities are %.2g nats from the trainer's on average, %.2g at most", h.Mean,
			h.Most)
	}
	return text
}

// Load has the server take over the weights of a directory, and checks that it has them. Texts that are under way
// there, also those of other programs, are broken off. Whatever happens, the server answers again afterwards.
func (s *server) Load(ctx context.Context, dir string, version int64) error {
	start := time.Now()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if s.isAsleep {
		return fmt.Errorf("%s sleeps: wake it first", s.name)
	}
	now := &loaded{version: version, dir: dir}
	if now.manifest, err = ReadManifest(dir); err != nil {
		return err
	}
	s.close()
	before := s.loaded
	s.loaded = nil
	if err := s.take(ctx, now); err != nil {
		return s.named(err)
	}
	h := Handover{Version: version, Mean: math.NaN(), Most: math.NaN()}
	err = s.compare(ctx, before, now, &h)
	if err == nil && (before == nil || !s.o.ProbeOnce) {
		err = s.probe(ctx, &h)
	}
	if err != nil {
		return s.named(fmt.Errorf("the hand-over of weights %d: %w", version, err))
	}
	s.loaded = now
	h.Seconds = time.Since(start).Seconds()
	if s.o.Loaded != nil {
		s.o.Loaded(h)
	}
	return nil
}

// take hands weights over.
func (s *server) take(ctx context.Context, now *loaded) (err error) {
	defer func() {
		// A server that stays paused answers no request: also one that has paused without saying so.
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.Question)
		defer cancel()
		err = cmp.Or(err, s.engine.resume(after))
	}()
	if err := s.engine.pause(ctx); err != nil {
		return err
	}
	return s.engine.load(ctx, now.dir, strconv.FormatInt(now.version, 10))
}

// probeTokens is the length of the text that Load compares by.
const probeTokens = 16

// grossDifference is a mean difference of log-probabilities, in nats, that no rounding makes: that of weights in 4
// bits is below it, and that of another model's above.
const grossDifference = 0.5

// probe compares log-probabilities with the trainer's.
func (s *server) probe(ctx context.Context, h *Handover) error {
	if s.o.LogProbs == nil || len(s.o.ProbeIDs) == 0 {
		return nil
	}
	q := question{id: RequestID("probe", h.Version, 0), prompt: s.o.ProbeIDs, most: probeTokens, heat: 1, topP: 1,
		greedy: true}
	r, err := s.engine.answer(ctx, q)
	if err != nil {
		return err
	}
	ids, logProbs, _, _, err := q.settle(&r, s.o.Vocab)
	if err != nil {
		return err
	}
	own, err := s.o.LogProbs(ctx, append(append([]int32(nil), q.prompt...), ids...), len(q.prompt))
	if err != nil {
		return err
	}
	if len(own) != len(ids) {
		return fmt.Errorf("the trainer has %d log-probabilities of %d tokens", len(own), len(ids))
	}
	sum, n, most := 0.0, 0, 0.0
	for i, lp := range logProbs {
		if d := math.Abs(float64(lp) - float64(own[i])); !math.IsNaN(d) {
			sum, n, most = sum+d, n+1, max(most, d)
		}
	}
	if n == 0 {
		return errors.New("it returns no log-probabilities")
	}
	if h.Mean, h.Most = sum/float64(n), most; h.Mean > grossDifference {
		return fmt.Errorf("its log-probabilities are %.3g nats from the trainer's on average: %w, or another model", h.Mean,
			errOld)
	}
	return nil
}

// Sleep has a server that shares the device give its memory back.
func (s *server) Sleep(ctx context.Context) error {
	if !s.o.Sleeps || s.isAsleep {
		return nil
	}
	s.close()
	if err := s.engine.sleep(ctx); err != nil {
		return s.named(err)
	}
	s.isAsleep = true
	return nil
}

// Wake has it take the memory again. Its weights are undefined before the next Load.
func (s *server) Wake(ctx context.Context) error {
	if !s.isAsleep {
		return nil
	}
	s.close()
	if err := s.engine.wake(ctx); err != nil {
		return s.named(err)
	}
	s.isAsleep, s.loaded = false, nil
	return nil
}
