package export

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
)

// Host 0 writes the model. It has all bf16 weights. For a model in fp32 it asks the owners of parts for their low
// halves, a part at a time. A question is the part's number. An answer is the length of an error, and then that error
// or, where the length is 0, the extent.

// These are no parts: noPart ends the questions, and noQuestion says that there may be more.
const (
	noPart     = -1
	noQuestion = -2
)

// View returns the weights of one part; those of the part before are no longer used then.
type View func(ctx context.Context, part int) (model.Values, error)

// Together has host 0 write the model in a format with write, and the others answer its questions.
func Together(ctx context.Context, s *session.Session, as Format, write func(context.Context, View) error) error {
	e := &exporter{session: s, own: stream.Viewer(s.Plan, s.Store)}
	asks := s.Env.Cluster != nil && s.Plan.Numerics.Master != optim.F32 && (as.DType != tensor.BF16 || as.MXFP4)
	return s.Env.Together(ctx, func(ctx context.Context) error {
		messages := context.WithoutCancel(ctx) // questions end, also where a host has failed
		switch {
		case s.Env.Cluster.Leads() && asks:
			return e.writeAsking(messages, func() error { return write(ctx, e.view) })
		case s.Env.Cluster.Leads():
			return write(ctx, e.own)
		case asks:
			return e.answer(messages)
		}
		return nil
	})
}

// exporter asks for low halves, or answers.
type exporter struct {
	session *session.Session
	own     View       // of the weights that this host has
	asking  sync.Mutex // held while host 0 asks, and is answered
	low     []int16    // memory for those of one part
	low8    []int8     // of a master of 24 bits
}

// view returns the weights of one part as all hosts have them together.
func (e *exporter) view(ctx context.Context, part int) (model.Values, error) {
	s := e.session
	v, err := e.own(ctx, part)
	if n := s.Plan.Model.Parts[part].Layout.StateElems; err == nil && n > 0 && !s.Plan.Owns(part) {
		if s.Plan.Numerics.Master == optim.Split24 {
			e.low8 = slices.Grow(e.low8[:0], int(n))[:n]
			v.Low8 = e.low8
			return v, e.ask(ctx, part, hf.BytesOf(e.low8))
		}
		e.low = slices.Grow(e.low[:0], int(n))[:n]
		v.Low, err = e.low, e.ask(ctx, part, hf.BytesOf(e.low))
	}
	return v, err
}

// ask fills dst with the low halves of a part that another host owns.
func (e *exporter) ask(ctx context.Context, part int, dst []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the answer comes in any case
	e.asking.Lock()
	defer e.asking.Unlock()
	c, owner, length := e.session.Env.Cluster, e.session.Plan.Owner(part), make([]byte, 8)
	if err := c.Peers.Send(ctx, owner, question(part)); err != nil {
		return err
	}
	if err := c.Peers.Receive(ctx, owner, length); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(length)
	if n == 0 {
		return c.Peers.Receive(ctx, owner, dst)
	}
	why := make([]byte, min(n, maxWhy))
	if err := c.Peers.Receive(ctx, owner, why); err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", c.Name(owner), terminal.Text(string(why)))
}

// maxWhy bounds the length of an error in an answer.
const maxWhy = 4096

func question(part int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(int64(part))) }

// askedPart reads a question of host 0: a part, of a number of parts, whose low halves this host has; noPart or
// noQuestion.
func askedPart(question []byte, parts int, has func(part int) bool) (part int, err error) {
	n := int64(binary.LittleEndian.Uint64(question))
	if n == noPart || n == noQuestion {
		return int(n), nil
	}
	if n < 0 || n >= int64(parts) || !has(int(n)) {
		return 0, fmt.Errorf("host 0 asks for part %d, which this host does not have: give all hosts the same program and the "+
			"same files", n)
	}
	return int(n), nil
}

// askAll sends the same to all other hosts in place of a part.
func (e *exporter) askAll(ctx context.Context, part int) (err error) {
	e.asking.Lock()
	defer e.asking.Unlock()
	for c, host := e.session.Env.Cluster, 1; host < c.Count(); host++ {
		err = errors.Join(err, c.Peers.Send(ctx, host, question(part)))
	}
	return err
}

// writeAsking has host 0 write the model, whose questions are then at an end. A host that has little of the state, or
// none, is asked seldom, and writing takes hours: so the others hear every beat that host 0 still writes.
func (e *exporter) writeAsking(ctx context.Context, write func() error) error {
	over := make(chan struct{})
	var group fault.Group
	var errBeat error
	group.Go(func() {
		for errBeat == nil {
			due, free := e.session.Env.Time().After(hosts.Beat)
			select {
			case <-over:
				free()
				return
			case <-due:
				free()
				errBeat = e.askAll(ctx, noQuestion)
			}
		}
	})
	err := write()
	close(over)
	group.Wait()
	return errors.Join(err, errBeat, e.askAll(ctx, noPart))
}

// answer answers host 0 until it has no more questions.
func (e *exporter) answer(ctx context.Context) error {
	s := e.session
	peers, ask := s.Env.Cluster.Peers, make([]byte, 8)
	has := func(part int) bool { return s.Plan.Owner(part) == s.Env.Cluster.Host && e.lowAt(part) >= 0 }
	var low []byte // memory for those of one part
	for {
		if err := peers.Receive(ctx, 0, ask); err != nil {
			return err
		}
		part, err := askedPart(ask, len(s.Plan.Model.Parts), has)
		switch {
		case err != nil:
			return err
		case part == noPart:
			return nil
		case part == noQuestion:
			continue
		}
		spec := s.Plan.StateExtents(part)[e.lowAt(part)]
		low = slices.Grow(low[:0], int(spec.Bytes))[:spec.Bytes]
		answer, why := low, []byte(nil)
		if err := stream.ReadExtent(ctx, s.Store, spec, low); err != nil {
			why = []byte(console.OneLine(err))
			why = why[:min(len(why), maxWhy)]
			answer = why
		}
		if err := peers.Send(ctx, 0, binary.LittleEndian.AppendUint64(nil, uint64(len(why)))); err != nil {
			return err
		}
		if err := peers.Send(ctx, 0, answer); err != nil {
			return err
		}
	}
}

// lowAt is the index of the extent of the low halves of a part; -1 if it has none.
func (e *exporter) lowAt(part int) int {
	return slices.IndexFunc(e.session.Plan.StateExtents(part),
		func(spec store.Spec) bool { return spec.Kind == store.Low })
}
