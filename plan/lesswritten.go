package plan

import (
	"context"
	"fmt"
	"iter"

	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/trace"
)

// LessWritten is the advice to change one key of a run whose steps wait for the disk: the smallest change after which
// it writes at most half as many bytes for a token or, if no change does that, the one after which it writes the
// fewest. All figures are predicted.
type LessWritten struct {
	Change       string  `json:"change"` // as a run file or --set has it
	TokenBytes   float64 `json:"bytes_per_token"`
	TokensPerSec float64 `json:"tokens_per_sec"`

	// Of the plan as it is.
	TokenBytesNow   float64 `json:"bytes_per_token_now"`
	TokensPerSecNow float64 `json:"tokens_per_sec_now"`
}

// lessWriting are the changes that may have a run write less, in the order of how much they change for the user:
// nothing but time, the form of its state, the size of its steps, the machine. A row yields requests with the smallest
// change of its key first, each with the key as it is set; none where the key is no help or may not change.
var lessWriting = []func(*Plan) iter.Seq2[string, Request]{gradientsTwice, smallerMoments, smallerMasters,
	moreTokens, moreMemory}

// gradientsTwice asks for steps that keep no gradients, which changes no bit.
func gradientsTwice(p *Plan) iter.Seq2[string, Request] {
	return func(yield func(string, Request) bool) {
		if !p.Placement.Twice && p.notTwice() == "" {
			yield("memory.gradients=twice", p.asked.with(GradientsTwice))
		}
	}
}

// smallerMoments asks for moments in 8 bits or, of a run that has these, in fewer, which are experiments.
func smallerMoments(p *Plan) iter.Seq2[string, Request] {
	return func(yield func(string, Request) bool) {
		r := *p.asked
		if r.Begun || r.Numerics.Master == optim.F32 {
			return
		}
		next := optim.Dynamic8
		if r.Numerics.Moments.Coded() {
			next = r.Numerics.Moments + 1
		}
		for ; next <= optim.Power4Root4; next++ {
			r.Numerics.Moments = next
			if next.IsExperiment() && !p.Numerics.Moments.Coded() || !yield(fmt.Sprintf("precision.moments=%v", next), r) {
				return
			}
		}
	}
}

// smallerMasters asks for master weights of 24 bits.
func smallerMasters(p *Plan) iter.Seq2[string, Request] {
	return func(yield func(string, Request) bool) {
		r := *p.asked
		if r.Begun || r.Numerics.Master != optim.Split {
			return
		}
		r.Numerics.Master = optim.Split24
		yield("precision.master=split24", r)
	}
}

// mostDoubles bounds how often the tokens of a step are doubled in search of fewer bytes for each.
const mostDoubles = 2

// moreTokens asks for larger steps: the state is written once in each.
func moreTokens(p *Plan) iter.Seq2[string, Request] {
	return func(yield func(string, Request) bool) {
		if p.asked.Begun {
			return
		}
		for n := 1; n <= mostDoubles && p.Whole.StepPositions() <= mostLargerTokens>>n; n++ {
			if !yield(fmt.Sprintf("batch_tokens=%d", p.Whole.StepPositions()<<n), p.asked.doubled(n)) {
				return
			}
		}
	}
}

// moreMemory asks for a host with room for half of what is on disk, or for somewhat more of it.
func moreMemory(p *Plan) iter.Seq2[string, Request] {
	return func(yield func(string, Request) bool) {
		if p.asked.HostBytes == 0 {
			return
		}
		for sixteenths := int64(8); sixteenths <= 12; sixteenths += 2 {
			r := *p.asked
			r.HostBytes += p.DiskBytes / 16 * sixteenths
			if !yield("memory.host="+sizeFor(r.HostBytes), r) {
				return
			}
		}
	}
}

// boundByDisk reports whether the disk is what a step waits for longest, and steps write to it.
func (p *Plan) boundByDisk() bool {
	q := &p.Predicted
	for _, seconds := range q.LaneSeconds {
		if seconds > q.LaneSeconds[LaneDisk] {
			return false
		}
	}
	return q.DiskWrittenBytes > 0
}

// LessWritten looks for the change of one key that spares a drive most, of a plan whose steps wait for it; nil for
// others, and where no change is known to help. A changed plan keeps gradients where this one does, unless that is the
// change. It ends soon after the context does, with the context's error.
func (p *Plan) LessWritten(ctx context.Context) (*LessWritten, error) {
	if p.asked == nil || !p.Trains() || !p.boundByDisk() {
		return nil, nil
	}
	tokenBytes := func(of *Plan) float64 {
		return float64(of.Predicted.DiskWrittenBytes) / float64(of.Whole.StepPositions())
	}
	now := tokenBytes(p)
	l := &LessWritten{TokenBytes: now, TokenBytesNow: now, TokensPerSecNow: p.tokensPerSec()}
	for _, row := range lessWriting {
		for change, r := range row(p) {
			q, err := New(ctx, r)
			if ended := ctx.Err(); ended != nil {
				return nil, ended
			}
			if err != nil { // it does not fit
				continue
			}
			if each := tokenBytes(q); each < l.TokenBytes {
				l.Change, l.TokenBytes, l.TokensPerSec = change, each, q.tokensPerSec()
			}
			if l.halves() {
				return l, nil
			}
		}
	}
	if l.Change == "" {
		return nil, nil
	}
	return l, nil
}

// halves reports whether at most half as many bytes are written for a token.
func (l *LessWritten) halves() bool { return l.TokenBytes <= l.TokenBytesNow/2 }

// String is the advice in a line.
func (l *LessWritten) String() string {
	text := fmt.Sprintf("%s would write %s to disk for each token, now %s, at %.0f tokens/s, now %.0f", l.Change,
		trace.FormatWritten(int64(l.TokenBytes)), trace.FormatWritten(int64(l.TokenBytesNow)), l.TokensPerSec,
		l.TokensPerSecNow)
	if !l.halves() {
		text += "; no change of one key alone halves it"
	}
	return text
}
