package plan

import (
	"context"
	"fmt"
	"math"
)

// LargerBatch is the advice to take more tokens in a step. Updates and moves of weights take a time that follows from
// the parameters of a model, however many tokens a step has; products follow from the tokens, and from the parameters
// that each of them uses. So a step with few tokens waits for the host or a link, most of all with a mixture of
// experts.
type LargerBatch struct {
	BatchTokens  int     `json:"batch_tokens"` // the fewest with which arithmetic bounds a step; a double of the plan's
	StepSeconds  float64 `json:"step_sec"`
	TokensPerSec float64 `json:"tokens_per_sec"`

	waits   string  // for what steps of the plan wait
	mixture string  // why that is so of a mixture of experts
	more    float64 // share of tokens in a second
}

// mostLargerTokens bounds the steps that are advised: no run of fine-tuning has larger ones.
const mostLargerTokens = 1 << 20

// BoundByArithmetic reports whether the device computes in nearly all of a step.
func (p *Plan) BoundByArithmetic() bool {
	q := &p.Predicted
	return q.LaneSeconds[LaneCompute] >= alone*q.StepSeconds
}

// LargerBatch looks for the number of tokens in a step from which on it is bound by arithmetic, among the doubles of
// the plan's. It returns nil where the plan's steps are; where none is that fits the budgets or has no more than a
// million tokens; where larger steps compute no more tokens in a second; and on devices that compute on the host's
// cores. It ends soon after the context does, with the context's error.
func (p *Plan) LargerBatch(ctx context.Context) (*LargerBatch, error) {
	if p.asked == nil || p.Unified || !p.Trains() || p.asked.Begun || p.BoundByArithmetic() {
		return nil, nil
	}
	busiest := LaneFetch // except compute
	for _, lane := range []Lane{LaneDrain, LaneUpdate, LaneDisk, LaneSend, LaneReceive} {
		if p.Predicted.LaneSeconds[lane] > p.Predicted.LaneSeconds[busiest] {
			busiest = lane
		}
	}
	at := func(doubled int) (*Plan, error) {
		r := p.asked.doubled(doubled)
		if r.Fits(ctx) != nil {
			return nil, ctx.Err()
		}
		return New(ctx, r)
	}
	// Arithmetic is proportional to the tokens, and no step is shorter than what the busiest other lane does now.
	times := alone * p.Predicted.LaneSeconds[busiest] / p.Predicted.LaneSeconds[LaneCompute]
	doubled, low := max(1, int(math.Ceil(math.Log2(times)))), 0 // low: the most doubles that are known not to be enough
	var best *Plan
	for doubled > low && p.Whole.StepPositions() <= mostLargerTokens>>doubled {
		q, err := at(doubled)
		switch {
		case q == nil:
			return nil, err
		case q.BoundByArithmetic():
			best, doubled = q, doubled-1
		case best == nil:
			low, doubled = doubled, doubled+1
		default:
			low = doubled
		}
	}
	if best == nil {
		return nil, nil
	}
	l := &LargerBatch{BatchTokens: best.Whole.StepPositions(), StepSeconds: best.Predicted.StepSeconds,
		TokensPerSec: best.tokensPerSec(), more: best.tokensPerSec()/p.tokensPerSec() - 1}
	if l.more < FasterBy {
		return nil, nil
	}
	l.mixture = p.mixture()
	l.waits = busiest.Limit()
	return l, nil
}

// doubled is a request for steps with twice the tokens, n times over.
func (r Request) doubled(n int) Request {
	r.Numerics.MicroBatches <<= n
	r.Numerics.ForwardOnly <<= n
	return r
}

// tokensPerSec counts packed positions.
func (p *Plan) tokensPerSec() float64 {
	return float64(p.Whole.StepPositions()) / p.Predicted.StepSeconds
}

// mixture says why steps of a mixture of experts wait; of other models it is empty.
func (p *Plan) mixture() string {
	params, trained := p.Model.Params()
	active := p.Model.Active()
	if active == params {
		return ""
	}
	moved := "moved and updated"
	if trained < params {
		moved = fmt.Sprintf("moved, %s of them are updated,", FormatCount(trained))
	}
	return fmt.Sprintf(", since all %s parameters are %s and a token computes with %s", FormatCount(params), moved,
		FormatCount(active))
}

// String is the advice in a line.
func (l *LargerBatch) String() string {
	return fmt.Sprintf("batch_tokens=%d would be bound by arithmetic, at %.0f tokens/s, %.0f%% more (%s a step); "+
		"now steps wait for %s%s", l.BatchTokens, l.TokensPerSec, 100*l.more, FormatSeconds(l.StepSeconds), l.waits,
		l.mixture)
}
