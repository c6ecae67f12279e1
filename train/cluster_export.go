package train

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// Host 0 writes the model. It has all bf16 weights. For a model in fp32 it asks the owners of parts for their low
// halves, a part at a time: a message of 8 bytes has the part's number, and the answer is the extent, in its pieces.

// noPart ends the questions.
const noPart = -1

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
	peers, owner := s.env.Cluster.Peers, s.plan.Owner(part)
	messages := context.WithoutCancel(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := peers.Send(messages, owner, question(part)); err != nil {
		return err
	}
	for _, spec := range s.plan.StateExtents(part) {
		if spec.Kind != store.Low {
			continue
		}
		for off, n := range spec.Pieces() {
			if err := peers.Receive(messages, owner, dst[off:off+n]); err != nil {
				return err
			}
		}
	}
	return nil
}

func question(part int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(int64(part))) }

// endQuestions tells the other hosts that there are no more.
func (s *Session) endQuestions(ctx context.Context) (err error) {
	for host := 1; host < s.env.Cluster.count(); host++ {
		err = errors.Join(err, s.env.Cluster.Peers.Send(ctx, host, question(noPart)))
	}
	return err
}

// answerLow answers host 0 until it has no more questions. An error of this host's store does not end that, and is the
// one that it returns: host 0 learns of it, and must not wait.
func (s *Session) answerLow(ctx context.Context) (failed error) {
	peers, ask := s.env.Cluster.Peers, make([]byte, 8)
	for {
		if err := peers.Receive(ctx, 0, ask); err != nil {
			return errors.Join(failed, err)
		}
		part := int(int64(binary.LittleEndian.Uint64(ask)))
		if part == noPart {
			return failed
		}
		of, err := s.sendLow(ctx, part)
		failed = cmp.Or(failed, of)
		if err != nil {
			return errors.Join(failed, err)
		}
	}
}

// sendLow sends the low halves of a part to host 0, or as many bytes where the store has failed. err is an error of the
// peers.
func (s *Session) sendLow(ctx context.Context, part int) (failed, err error) {
	id := store.ID{Part: part, Kind: store.Low}
	specs, version := s.plan.StateExtents(part), s.Store.Version(id)
	spec := specs[slices.IndexFunc(specs, func(spec store.Spec) bool { return spec.ID == id })]
	for off, n := range spec.Pieces() {
		l, err := s.Store.Borrow(ctx, trace.Disk.Of(0), id, off, n, store.Read, version)
		if err != nil {
			failed, err = err, s.env.Cluster.Peers.Send(ctx, 0, make([]byte, n))
		} else {
			err = s.env.Cluster.Peers.Send(ctx, 0, l.Bytes())
			l.Release()
		}
		if err != nil {
			return failed, err
		}
	}
	return failed, nil
}

// exportAlike has host 0 write the model with write, and the others answer its questions.
func (s *Session) exportAlike(ctx context.Context, as format, write func(context.Context) error) error {
	asks := s.needsLow(as)
	return s.env.together(ctx, func(ctx context.Context) error {
		messages := context.WithoutCancel(ctx) // what one host waits for comes, also where another has failed
		switch {
		case s.env.Cluster.Leads() && asks:
			return errors.Join(write(ctx), s.endQuestions(messages))
		case s.env.Cluster.Leads():
			return write(ctx)
		case asks:
			return s.answerLow(messages)
		}
		return nil
	})
}
