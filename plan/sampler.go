package plan

import (
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/store"
)

// A run that learns from its own answers is two programs in turn: it takes steps, and between them it writes texts by
// the thousand, a token of each at a time. What does a pass for a token wait for? With 8 billion parameters it reads
// 15 GiB of weights and computes next to nothing with them. Where they are on the device that takes 15 ms on a card of
// 1 TB/s, and where they cross a link of 25 GB/s it takes 600.
//
// The obvious answer is a pass that follows the plan of the steps, with caches next to all else that it has. But
// these have spent the device on steps: on micro-batches as large as fit, on logits, on what blocks keep for
// their way back. There is no room for weights that stay, nor for caches, and both cross the link for each token.
//
// Another answer is to have the search of the steps count passes as well. But what one half of a round has on the
// device then, the other one lacks.
//
// The answer here: while texts grow, no step runs. What steps have on the device between two of them is a copy of what
// the store has, once their last update is written back. So passes have a plan of their own (Request.Over), in the same
// allocation and over the same store: as if the steps were not there on the device, and with weights where the steps
// have them in host memory or on disk. The two take turns, and each brings what it needs when its turn comes. In host
// memory the sampler has what it adds: tokens, results, caches without room on the device, logits.

// SamplerPurpose names what a sampler takes besides the steps, of host memory, and of the device.
const SamplerPurpose = "sampler of answers"

// engineHost has the purposes of host memory that an engine reserves itself.
var engineHost = []string{TokensPurpose, ResultsPurpose, InputsPurpose, SidesPurpose, HeldPurpose, KeptPurpose,
	OutcomesPurpose, CachesPurpose, LogitsPurpose, EmbeddingSumPurpose, SumsPurpose, EmbeddingAheadPurpose}

// EngineHost lists the host memory that an engine reserves itself, besides the store.
func (p *Plan) EngineHost() []Bytes {
	return slices.DeleteFunc(slices.Clone(p.Host), func(b Bytes) bool { return !slices.Contains(engineHost, b.Purpose) })
}

// WithSampler is the plan with one of passes that continue texts, which was made over it: it takes the memory of both.
func (p *Plan) WithSampler(q *Plan, dev device.Info) *Plan {
	both := *p
	both.Sampler = q
	bytes, pinned := int64(0), int64(0)
	for _, b := range q.EngineHost() {
		n := store.AlignUp(b.Bytes)
		if bytes += n; q.Pinned(b.Purpose) && !q.Unified {
			pinned += n
		}
	}
	mib := (pinned + 1<<20 - 1) >> 20
	both.PinnedBytes += pinned
	both.PageTableBytes += mib * dev.PinnedDeviceBytesPerMiB
	both.setSampler(bytes + store.AlignUp(mib*dev.PinnedHostBytesPerMiB))
	if p.asked != nil { // advice for other steps leaves as much
		asked := *p.asked
		asked.SamplerBytes, both.asked = both.SamplerBytes(), &asked
	}

	both.ByDevice = slices.Clone(p.ByDevice)
	most := p.DeviceBytes
	for rank := range q.Ranks() {
		n := max(p.RankBytes(rank), q.RankBytes(rank))
		if most = max(most, n); len(both.ByDevice) > 0 {
			both.ByDevice[rank] = n
		}
	}
	if most > p.DeviceBytes {
		both.Device = append(slices.Clip(p.Device), Bytes{SamplerPurpose, most - p.DeviceBytes})
		both.DeviceBytes = most
	}
	return &both
}

// setSampler has the plan take as much host memory for a sampler, instead of what was reserved for one.
func (p *Plan) setSampler(bytes int64) {
	all := make([]Bytes, 0, len(p.Host)+1)
	for _, b := range p.Host {
		if b.Purpose == SamplerPurpose {
			p.HostBytes -= b.Bytes
		} else {
			all = append(all, b)
		}
	}
	p.Host, p.HostBytes = append(all, Bytes{SamplerPurpose, bytes}), p.HostBytes+bytes
}

// SamplerBytes is the host memory that the plan's sampler takes, or that is reserved for one.
func (p *Plan) SamplerBytes() int64 {
	for _, b := range p.Host {
		if b.Purpose == SamplerPurpose {
			return b.Bytes
		}
	}
	return 0
}

// Texts is the plan of passes that continue texts: this one, or that of its sampler; nil: there are no such passes.
func (p *Plan) Texts() *Plan {
	switch {
	case p.Sampler != nil:
		return p.Sampler
	case p.Outputs.Continues():
		return p
	}
	return nil
}

// whole is a plan with the one that it is made over.
func (c *chooser) whole(p *Plan) *Plan {
	if c.Over == nil {
		return p
	}
	return c.Over.WithSampler(p, c.Device)
}
