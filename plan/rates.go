package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// Rates by operation. A machine has one rate of matrix products, one of element-wise operations, and attention's by
// length. Other classes of operations (nn.Class) have entries in Machine.Operations. Operation.On finds the rate of
// a class there, or takes a share of another rate. It says so then, and so does every plan that needs it: gated
// delta nets once had the rate of attention in silence, and took a 17th of their time.

// OperationRate is the rate of a class of operations of one form. FLOPsPerSec or BytesPerSec is set, as the class is
// counted.
type OperationRate struct {
	Operation nn.Class `json:"operation"`
	Compute   string   `json:"compute,omitempty"`  // f32 or bf16; empty: both
	HeadDim   int      `json:"head_dim,omitempty"` // of attention and gated delta nets
	// SequenceLen is the length of attention's documents. At other lengths the rate follows Machine.AttentionByLength.
	SequenceLen int     `json:"sequence_len,omitempty"`
	Rows        int     `json:"rows,omitempty"` // of each expert
	FLOPsPerSec float64 `json:"flops_per_sec,omitempty"`
	BytesPerSec float64 `json:"bytes_per_sec,omitempty"`
}

// PerSec is the rate, in FLOPs or bytes a second.
func (r *OperationRate) PerSec() float64 { return r.FLOPsPerSec + r.BytesPerSec }

// Check refuses a rate that nothing can have, or of what has no entries.
func (r *OperationRate) Check() error {
	of, none := r.BytesPerSec, r.FLOPsPerSec
	if r.Operation.IsFLOPs() {
		of, none = none, of
	}
	isKnown := r.Compute == "" || r.Compute == tensor.F32.String() || r.Compute == tensor.BF16.String()
	switch hasRows := r.Rows > 0; {
	case r.Operation == nn.OfProducts || r.Operation == nn.OfElements:
		return fmt.Errorf("%s have keys of their own", r.Operation)
	case !(of > 0) || of > 1e20 || none != 0:
		return fmt.Errorf("%s: %v FLOPs and %v bytes a second", r.Operation.Key(), r.FLOPsPerSec, r.BytesPerSec)
	case !isKnown, r.HeadDim < 0, r.SequenceLen < 0, r.Rows < 0, r.HeadDim > 0 && !r.Operation.IsOfHeads(),
		hasRows != r.Operation.IsOfExperts():
		return fmt.Errorf("%s: compute %q, head_dim %d, sequence_len %d and rows %d do not go together", r.Operation.Key(),
			r.Compute, r.HeadDim, r.SequenceLen, r.Rows)
	}
	return nil
}

// Operation is a class of operations in the form in which a model asks for them.
type Operation struct {
	Class         nn.Class
	Compute       tensor.DType
	HeadDim, Rows int  // as of OperationRate; 0 where it has no meaning
	SequenceLen   int  // of documents
	Unified       bool // on a device that computes on the host's cores
}

// stand stands for a rate that was not measured: a share of another one.
type stand struct {
	of      nn.Class     // whose rate it is a share of: products, attention or elements
	share   float64      // of FLOPs for a class that is counted so, per FLOP or byte of the other
	compute tensor.DType // of those products; Invalid: that of the operation
}

// gpuStands are the shares that an NVIDIA H100 had (benchmarks/gpu, call 4, in bf16). What has no share of its own
// has the rate of what it stands for. Kernels of gated delta nets are at 3% of the tensor cores' rate and 7% of the
// memory's: they wait for their own steps, whose number in a second follows a GPU's multiprocessors and clock, as
// products in fp32 do. An RTX 4090 has as many of these as an H100, and a fifth of its products in bf16.
var gpuStands = [nn.Classes]stand{
	nn.OfAttention:           {of: nn.OfAttention, share: 1},
	nn.OfAttentionGrad:       {of: nn.OfAttention, share: 1},
	nn.OfCappedAttention:     {of: nn.OfAttention, share: 1},
	nn.OfCappedAttentionGrad: {of: nn.OfAttention, share: 1},
	nn.OfCacheAttention:      {of: nn.OfAttention, share: 1},
	nn.OfDelta:               {nn.OfProducts, 0.40, tensor.F32},
	nn.OfDeltaGrad:           {nn.OfProducts, 0.28, tensor.F32},
	nn.OfDeltaSteps:          {of: nn.OfElements, share: 0.75}, // six FLOPs for each number of a state
	nn.OfConv:                {of: nn.OfElements, share: 0.75},
	nn.OfConvGrad:            {of: nn.OfElements, share: 0.13},
	nn.OfMoves:               {of: nn.OfElements, share: 1},
	nn.OfNormGrads:           {of: nn.OfElements, share: 1},
	nn.OfUnitGrads:           {of: nn.OfElements, share: 1},
	nn.OfLoss:                {of: nn.OfElements, share: 1},
	nn.OfUpdates8:            {of: nn.OfElements, share: 0.70},
}

// cpuStands holds the stands of a core of a CPU with AVX2 (an AMD EPYC, one thread, by its processor time). There a
// convolution and its gradient compute an exponential for each number, one by one.
var cpuStands = [nn.Classes]stand{
	nn.OfAttention:           {of: nn.OfAttention, share: 1},
	nn.OfAttentionGrad:       {of: nn.OfAttention, share: 1},
	nn.OfCappedAttention:     {of: nn.OfAttention, share: 1},
	nn.OfCappedAttentionGrad: {of: nn.OfAttention, share: 1},
	nn.OfCacheAttention:      {of: nn.OfAttention, share: 1},
	nn.OfDelta:               {of: nn.OfProducts, share: 0.30},
	nn.OfDeltaGrad:           {of: nn.OfProducts, share: 0.30},
	nn.OfDeltaSteps:          {of: nn.OfElements, share: 0.75},
	nn.OfConv:                {of: nn.OfElements, share: 0.15},
	nn.OfConvGrad:            {of: nn.OfElements, share: 0.10},
	nn.OfNormGrads:           {of: nn.OfElements, share: 1},
	nn.OfUnitGrads:           {of: nn.OfElements, share: 1},
	nn.OfLoss:                {of: nn.OfElements, share: 1},
	nn.OfUpdates8:            {of: nn.OfElements, share: 1}, // no update is on such a device's lane
}

// guessed says where a rate was taken from: a rate of the same machine, and whose share it is.
func guessed(of stand, unified bool) string {
	whose := "an H100"
	if unified {
		whose = "an EPYC with AVX2"
	}
	if of.share == 1 {
		return "that of " + of.of.String()
	}
	return fmt.Sprintf("%s, as %s was measured to have", of.text(), whose)
}

// text is the share for people.
func (s stand) text() string {
	text := fmt.Sprintf("%.3g of that of %s", s.share, s.of)
	if s.compute != tensor.Invalid {
		text += " in " + s.compute.String()
	}
	return text
}

// On returns the FLOPs or bytes, as the class is counted, that a machine does of the operation in a second. taken says
// what the rate was taken from if it was not measured; it is empty if it was.
func (o Operation) On(m *Machine) (perSec float64, taken string) {
	switch o.Class {
	case nn.OfProducts:
		return m.MatMulFLOPsPerSec(o.Compute), ""
	case nn.OfElements:
		return m.ElementBytesPerSec(o.Compute), ""
	}
	if rate, headDim := o.measured(m); rate > 0 {
		if headDim != o.HeadDim && headDim > 0 && o.HeadDim > 0 {
			taken = fmt.Sprintf("that of heads of %d", headDim)
		}
		return rate, taken
	}
	switch {
	case o.Class.IsOfExperts():
		return o.ofExperts(m)
	case o.Class == nn.OfMoves && o.Unified:
		return m.HostBytesPerSec, "" // a copy there, as it was measured
	}
	stands := &gpuStands
	if o.Unified {
		stands = &cpuStands
	}
	s := stands[o.Class]
	switch s.of {
	case nn.OfProducts:
		compute := o.Compute
		if s.compute != tensor.Invalid {
			compute = s.compute
		}
		return s.share * m.MatMulFLOPsPerSec(compute), guessed(s, o.Unified)
	case nn.OfElements:
		if taken = guessed(s, o.Unified); s.share == 1 {
			taken = "" // they are element-wise operations, of which the probe has a mix
		}
		return s.share * m.ElementBytesPerSec(o.Compute), taken
	}
	rate := s.share * m.AttentionFLOPsPerSecAt(o.Compute, o.SequenceLen)
	switch probed := ProbedHeadDim(o.Unified); {
	case o.Class != nn.OfAttention && o.Class != nn.OfAttentionGrad, s.share != 1:
		return rate, guessed(s, o.Unified)
	case o.HeadDim != probed:
		return rate, fmt.Sprintf("that of heads of %d", probed)
	}
	return rate, "" // forward and backward were measured together
}

// ProbedHeadDim is the width of the heads that Machine.AttentionFLOPsPerSec is measured with: 64 on a unified device,
// whose models are small, and 128 on a GPU.
func ProbedHeadDim(unified bool) int {
	if unified {
		return 64
	}
	return 128
}

// measured is the rate by the machine's entries: of those with the nearest width of heads, which is returned, and
// between rows of experts on a line over their logarithm; 0 if the machine has no entry of the class and the type.
func (o Operation) measured(m *Machine) (perSec float64, headDim int) {
	var of []OperationRate
	away := math.Inf(1)
	for _, r := range m.Operations {
		if r.Operation != o.Class || r.Compute != "" && r.Compute != o.Compute.String() {
			continue
		}
		d := 0.0
		if r.HeadDim > 0 && o.HeadDim > 0 {
			d = math.Abs(math.Log(float64(r.HeadDim) / float64(o.HeadDim)))
		}
		if d < away {
			away, of = d, of[:0]
		}
		if d == away {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		return 0, 0
	}
	if o.Class.IsOfExperts() {
		slices.SortFunc(of, func(a, b OperationRate) int { return a.Rows - b.Rows })
		return between(o.Rows, of, func(r OperationRate) (int, float64) { return r.Rows, r.PerSec() }), 0
	}
	r := of[0]
	perSec = r.PerSec()
	if r.SequenceLen > 0 {
		for _, other := range of[1:] { // of the nearest length
			if abs(other.SequenceLen-o.SequenceLen) < abs(r.SequenceLen-o.SequenceLen) {
				r, perSec = other, other.PerSec()
			}
		}
		perSec *= m.AttentionFLOPsPerSecAt(o.Compute, o.SequenceLen) / m.AttentionFLOPsPerSecAt(o.Compute, r.SequenceLen)
	}
	return perSec, r.HeadDim
}

func abs(n int) int { return max(n, -n) }

// between is a rate at a size by those at sizes that rise: between two of them on a line over the logarithm of the
// size, beyond them that of the nearest.
func between[R any](size int, rates []R, of func(R) (int, float64)) float64 {
	lowSize, low := of(rates[0])
	for _, r := range rates {
		highSize, high := of(r)
		if size <= highSize {
			if highSize == lowSize || size <= lowSize {
				return high
			}
			part := math.Log(float64(size)/float64(lowSize)) / math.Log(float64(highSize)/float64(lowSize))
			return low + part*(high-low)
		}
		lowSize, low = highSize, high
	}
	return low
}

// Products of experts on a GPU take the longer one of two times: that of the arithmetic, at a share of the rate of
// products that falls with the rows that an expert has, and that of the experts' weights, or of gradients that are
// read and written, at a share of the rate of memory. Shares are those of an H100 (benchmarks/gpu, call 4):
// products of 2,048, 256 and 64 rows at 589, 470 and 164 TFLOP/s, and gradients of 2,048 and 256 rows at 317 and
// 120.
var (
	expertShares    = []expertShare{{256, 0.70}, {2048, 0.88}}
	expertMemory    = 0.94
	expertGradShare = 0.47
	expertGradBytes = 0.69

	// Those of a core of a CPU with AVX2, of products and of gradients.
	cpuExpertShares = []expertShare{{16, 0.45}, {256, 0.95}}
)

// expertShare is a share of the rate of products, by the rows that an expert has.
type expertShare struct {
	rows  int
	share float64
}

// ofExperts is the rate of products of experts, or of gradients of their weights, where it was not measured.
func (o Operation) ofExperts(m *Machine) (perSec float64, taken string) {
	products := m.MatMulFLOPsPerSec(o.Compute)
	shareOf := func(list []expertShare) float64 {
		return between(o.Rows, list, func(s expertShare) (int, float64) { return s.rows, s.share })
	}
	if o.Unified {
		share := shareOf(cpuExpertShares)
		return share * products, fmt.Sprintf("%.2g of that of matrix products, with %d rows an expert, as an EPYC with "+
			"AVX2 was measured to have", share, o.Rows)
	}
	rows, memory := float64(max(o.Rows, 1)), m.ElementBytesPerSec(o.Compute)
	share := expertGradShare
	bound := expertGradBytes * memory * rows * 2 / (2 * float64(tensor.F32.Bytes()))
	if o.Class == nn.OfExperts {
		share = shareOf(expertShares)
		bound = expertMemory * memory * rows * 2 / float64(o.Compute.Bytes())
	}
	perSec = min(share*products, bound)
	return perSec, fmt.Sprintf("%.2g of that of matrix products, with %d rows an expert, as an H100 was measured to have",
		perSec/products, o.Rows)
}

// seconds is the time that the work of an account takes, of the classes that are wanted.
func (p *Plan) seconds(m *Machine, a *nn.Account, wanted func(nn.Class) bool) (sec float64) {
	for class := range nn.Class(nn.Classes) {
		if amount := a.Work[class]; amount > 0 && wanted(class) {
			rate, _ := p.operationOf(class, a).On(m)
			took := float64(amount) / rate
			if class == nn.OfCacheAttention { // a text has one row, which reads as much as it computes with
				took = max(took, float64(a.CacheBytes)/m.ElementBytesPerSec(p.Numerics.Compute))
			}
			sec += took
		}
	}
	return sec
}

// operationOf is the form of a class in an account.
func (p *Plan) operationOf(class nn.Class, a *nn.Account) Operation {
	n := &p.Numerics
	o := Operation{Class: class, Compute: n.Compute, SequenceLen: n.SequenceLen, Unified: p.Unified}
	switch class {
	case nn.OfDelta, nn.OfDeltaGrad, nn.OfDeltaSteps:
		o.HeadDim = a.DeltaDim
	case nn.OfExperts, nn.OfExpertGrads:
		o.Rows = a.ExpertRows
	default:
		if class.IsOfHeads() {
			o.HeadDim = a.HeadDim
		}
	}
	return o
}
