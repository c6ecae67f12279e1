package rl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/internal/spelling"
)

// Prompts is the order in which prompts are asked: each epoch has all of them, in an order of its own.
type Prompts struct {
	set     *data.Dataset
	seed    uint64
	region  *hostmem.Region
	fitting []int32 // documents that leave room for an answer
	order   []int32 // of fitting, in the epoch
	epoch   int     // of order; -1: none yet
	longest int     // tokens of the longest of fitting

	longestRow int64 // bytes of the longest row of fitting
}

// OpenPrompts orders prompts by a seed. Those that leave no room for an answer in a number of positions are left out.
func OpenPrompts(set *data.Dataset, positions int, seed uint64, accounts *hostmem.Accounts) (*Prompts, error) {
	n := set.Len()
	region, err := accounts.Reserve(data.OrderPurpose, 8*int64(n))
	if err != nil {
		return nil, err
	}
	if err := region.Populate(); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	all := hostmem.I32(region.Bytes())
	p := &Prompts{set: set, seed: seed, region: region, fitting: all[:0:n], epoch: -1}
	for i := range n {
		if length := set.DocumentLen(i); length < positions {
			p.fitting, p.longest = append(p.fitting, int32(i)), max(p.longest, length)
			p.longestRow = max(p.longestRow, set.AskedBytes(i))
		}
	}
	if len(p.fitting) == 0 {
		err := fmt.Errorf("datasets: none of %s is shorter than sequence_len (%d tokens), so that there is room for no "+
			"answer: raise sequence_len, or shorten the prompts", spelling.Count(n, "prompt"), positions)
		return nil, errors.Join(err, region.Close())
	}
	p.order = all[n:][:len(p.fitting)]
	return p, nil
}

// Close gives back the memory of the order.
func (p *Prompts) Close() error { return p.region.Close() }

// shortTokens is the length of a text after which a server's log-probabilities are compared.
const shortTokens = 16

// Short is the beginning of a prompt, of a few tokens.
func (p *Prompts) Short() ([]int32, error) {
	e, err := p.set.Example(int(p.fitting[0]))
	if err != nil {
		return nil, err
	}
	return slices.Clone(e.InputIDs[:min(len(e.InputIDs), shortTokens)]), nil
}

// LeftOut counts the prompts that are too long.
func (p *Prompts) LeftOut() int { return p.set.Len() - len(p.fitting) }

// Longest is the number of tokens of the longest prompt that is asked.
func (p *Prompts) Longest() int { return p.longest }

// At returns the prompt at a cursor: its document, its number, which no other one of the run has, and the cursor after
// it.
func (p *Prompts) At(c data.Cursor) (document int, number int64, after data.Cursor) {
	n := len(p.fitting)
	for c.Row >= n {
		c = data.Cursor{Epoch: c.Epoch + 1, Row: c.Row - n}
	}
	if p.epoch != c.Epoch {
		rng.New(p.seed, "prompts", uint64(c.Epoch), 0).Perm(p.order)
		p.epoch = c.Epoch
	}
	number = int64(c.Epoch)*int64(n) + int64(c.Row)
	return int(p.fitting[p.order[c.Row]]), number, data.Cursor{Epoch: c.Epoch, Row: c.Row + 1}
}
