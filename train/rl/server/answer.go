package server

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"

	"github.com/millrace/millrace/train/rl/sampler"
)

// protocol is a kind of server. Each method sends what its server wants, and understands what that says.
type protocol interface {
	describe(ctx context.Context) (description, error)
	answer(ctx context.Context, q question) (reply, error)
	// hasTruncated reports whether log-probabilities are those of the tokens that top_p and top_k leave, as the sampler
	// draws them; scales whether they are of logits that were divided by the temperature.
	hasTruncated(d *description) bool
	scales(d *description) bool
	// pause ends what is under way, load takes weights of a directory, resume undoes pause.
	pause(ctx context.Context) error
	load(ctx context.Context, dir, version string) error
	resume(ctx context.Context) error
	// digests are checksums of the tensors that the server has, by names that it has for them; errUnknown where it
	// has none.
	digests(ctx context.Context) (map[string]string, error)
	// row is the beginning of a tensor by its name in the files; errUnknown where the server cannot tell.
	row(ctx context.Context, name string) ([]float32, error)
	sleep(ctx context.Context) error
	wake(ctx context.Context) error
}

// question asks for an answer.
type question struct {
	id     string // of the request, which no other one has
	prompt []int32
	ends   []int32
	most   int // tokens
	heat   float64
	topK   int
	topP   float64
	seed   int64
	greedy bool // the likeliest tokens; heat, topK and topP have no meaning
}

// reply has what a server says.
type reply struct {
	ids      []int32
	logProbs []float32 // NaN: not known
	finish   string    // the server's word
	end      int32     // the token by which the server says that it ended; noToken: it does not say one
	prompt   []int32   // that the server has read; nil: it does not say
	read     int       // tokens of the prompt that it has read
	version  string    // of its weights; "": it does not say
}

const noToken = -1

// Bytes of an answer of a server at most: for each token of it and of its prompt, and for the rest. A token has an id
// twice, a log-probability and, from vLLM, an entry of the likeliest ones: about 120.
const (
	answerTokenBytes = 1 << 10
	promptTokenBytes = 16
	answerRestBytes  = 256 << 10
)

func (q *question) mostBytes() int64 {
	return answerRestBytes + int64(q.most)*answerTokenBytes + int64(len(q.prompt))*promptTokenBytes
}

// settle checks a reply, and returns the answer's tokens, their log-probabilities, and why it ended. The two servers
// leave the token that ends an answer in the ids, SGLang without a tokenizer in older versions and others that speak
// the protocol leave it out; then it is put back, with a log-probability that is not known. An answer that the server
// ended by a token which ends none for the run was cut off; cut then has that token.
func (q *question) settle(r *reply, vocab int) (ids []int32, logProbs []float32, finish string, cut int32, err error) {
	ids, logProbs, cut = r.ids, r.logProbs, noToken
	bad := func(format string, args ...any) ([]int32, []float32, string, int32, error) {
		return nil, nil, "", noToken, fmt.Errorf(format, args...)
	}
	isEnd := func(id int32) bool { return slices.Contains(q.ends, id) }
	if len(logProbs) != len(ids) {
		return bad("an answer has %d tokens and %d log-probabilities", len(ids), len(logProbs))
	}
	if r.read != len(q.prompt) || r.prompt != nil && !slices.Equal(r.prompt, q.prompt) {
		return bad("the server has read other tokens than the prompt's: %d of %d", r.read, len(q.prompt))
	}
	for i, id := range ids {
		switch lp := float64(logProbs[i]); {
		case id < 0 || int(id) >= vocab:
			return bad("an answer has token %d, and the vocabulary ends before %d", id, vocab)
		case lp > highestLogProb || math.IsInf(lp, 0):
			return bad("token %d of an answer has the log-probability %v: does the server return logits?", i, lp)
		case isEnd(id) && i < len(ids)-1:
			return bad("an answer goes beyond its token %d, which ends it", i)
		}
	}
	switch {
	case r.finish != sampler.FinishStop && r.finish != sampler.FinishLength:
		return bad("an answer ended by %q, which is neither stop nor length", r.finish)
	case r.finish == sampler.FinishStop && isEnd(r.end) && (len(ids) == 0 || ids[len(ids)-1] != r.end):
		ids = append(slices.Clip(ids), r.end)
		logProbs = append(slices.Clip(logProbs), float32(math.NaN()))
	}
	switch {
	case len(ids) == 0:
		return bad("an answer is empty")
	case len(ids) > q.most:
		return bad("an answer has %d tokens, and %d were asked for at most", len(ids), q.most)
	case isEnd(ids[len(ids)-1]):
		return ids, logProbs, sampler.FinishStop, noToken, nil
	case r.finish == sampler.FinishStop:
		cut = r.end
		if cut == noToken {
			cut = ids[len(ids)-1]
		}
	}
	return ids, logProbs, sampler.FinishLength, cut, nil
}

// highestLogProb has room for the rounding of a probability of 1.
const highestLogProb = 1e-3

// known turns log-probabilities of JSON into numbers: null, and what vLLM writes for one that is infinite, is not
// known.
func known(all []*float64) []float32 {
	const vllmInfinite = -9999
	out := make([]float32, len(all))
	for i, lp := range all {
		out[i] = float32(math.NaN())
		if lp != nil && *lp > vllmInfinite {
			out[i] = float32(*lp)
		}
	}
	return out
}

// withQuery makes the parameters of an address.
func withQuery(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v
}
