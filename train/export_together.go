package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/hosts"
)

// Host 0 writes the model. It has all bf16 weights. For a model in fp32 it asks the owners of parts for their low
// halves, a part at a time. A question is the part's number. An answer is the length of an error, and then that error
// or, where the length is 0, the extent.

// These are no parts: noPart ends the questions, and noQuestion says that there may be more.
const (
	noPart     = -1
	noQuestion = -2
)

// needsLow reports whether a model in this format is made of weights and low halves.
func (s *Session) needsLow(as format) bool {
	return s.env.Cluster != nil && s.plan.Numerics.Master == optim.Split && (as.dtype != tensor.BF16 || as.mxfp4)
}

// exportView returns the weights of one part as all hosts have them together.
func (s *Session) exportView(as format) func(ctx context.Context, part int) (model.Values, error) {
	own, asks := stream.Viewer(s.plan, s.Store), s.needsLow(as)
	var low []int16 // memory for those of one part
	return func(ctx context.Context, part int) (model.Values, error) {
		v, err := own(ctx, part)
		if n := s.plan.Model.Parts[part].Layout.StateElems; err == nil && asks && n > 0 && !s.plan.Owns(part) {
			low = slices.Grow(low[:0], int(n))[:n]
			v.Low, err = low, s.askLow(ctx, part, bytesOf(low))
		}
		return v, err
	}
}

// askLow fills dst with the low halves of a part that another host owns.
func (s *Session) askLow(ctx context.Context, part int, dst []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the answer comes in any case
	s.asking.Lock()
	defer s.asking.Unlock()
	c, owner, length := s.env.Cluster, s.plan.Owner(part), make([]byte, 8)
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

// hasLow reports whether this host owns a part that has low halves.
func (s *Session) hasLow(part int) bool {
	return s.plan.Owner(part) == s.env.Cluster.Host && s.lowAt(part) >= 0
}

// askAll sends the same to all other hosts in place of a part.
func (s *Session) askAll(ctx context.Context, part int) (err error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	for host := 1; host < s.env.Cluster.Count(); host++ {
		err = errors.Join(err, s.env.Cluster.Peers.Send(ctx, host, question(part)))
	}
	return err
}

// writeAsking has host 0 write the model, whose questions are then at an end. A host that has little of the state, or
// none, is asked seldom, and writing takes hours: so the others hear every beat that host 0 still writes.
func (s *Session) writeAsking(ctx context.Context, write func() error) error {
	over := make(chan struct{})
	var group fault.Group
	var errBeat error
	group.Go(func() {
		for errBeat == nil {
			due, free := s.env.time().After(hosts.Beat)
			select {
			case <-over:
				free()
				return
			case <-due:
				free()
				errBeat = s.askAll(ctx, noQuestion)
			}
		}
	})
	err := write()
	close(over)
	group.Wait()
	return errors.Join(err, errBeat, s.askAll(ctx, noPart))
}

// answerLow answers host 0 until it has no more questions.
func (s *Session) answerLow(ctx context.Context) error {
	peers, ask := s.env.Cluster.Peers, make([]byte, 8)
	var low []byte // memory for those of one part
	for {
		if err := peers.Receive(ctx, 0, ask); err != nil {
			return err
		}
		part, err := askedPart(ask, len(s.plan.Model.Parts), s.hasLow)
		switch {
		case err != nil:
			return err
		case part == noPart:
			return nil
		case part == noQuestion:
			continue
		}
		spec := s.lowSpec(part)
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

// lowSpec is the extent of the low halves of a part.
func (s *Session) lowSpec(part int) store.Spec { return s.plan.StateExtents(part)[s.lowAt(part)] }

// lowAt is the index of that extent; -1 if the part has none.
func (s *Session) lowAt(part int) int {
	return slices.IndexFunc(s.plan.StateExtents(part), func(spec store.Spec) bool { return spec.Kind == store.Low })
}

// exportTogether has host 0 write the model with write, and the others answer its questions.
func (s *Session) exportTogether(ctx context.Context, as format, write func(context.Context) error) error {
	asks := s.needsLow(as)
	return s.env.together(ctx, func(ctx context.Context) error {
		messages := context.WithoutCancel(ctx) // questions end, also where a host has failed
		switch {
		case s.env.Cluster.Leads() && asks:
			return s.writeAsking(messages, func() error { return write(ctx) })
		case s.env.Cluster.Leads():
			return write(ctx)
		case asks:
			return s.answerLow(messages)
		}
		return nil
	})
}
