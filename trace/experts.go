package trace

import (
	"math"
	"slices"
)

// Experts say how a step's rows were spread over the experts of each layer that has experts.
type Experts struct {
	// by layer: the share of all choices that its busiest expert got; 1/n if all n got equally many
	Busiest []float64 `json:"busiest"`
	Entropy []float64 `json:"entropy"` // by layer: of the shares, 1 if all experts got equally many, 0 if one got all
	Unused  []int     `json:"unused"`  // by layer: experts that no row chose
}

// ExpertsOf has the loads of blocks: how many rows chose each expert. It is nil if no block has experts.
func ExpertsOf(loads [][]int) *Experts {
	var x *Experts
	for _, load := range loads {
		if len(load) == 0 {
			continue
		}
		if x == nil {
			x = &Experts{}
		}
		sum, unused, entropy := 0, 0, 0.0
		for _, n := range load {
			sum += n
		}
		for _, n := range load {
			if n == 0 {
				unused++
				continue
			}
			share := float64(n) / float64(sum)
			entropy -= share * math.Log(share)
		}
		if len(load) > 1 {
			entropy /= math.Log(float64(len(load)))
		}
		x.Busiest = append(x.Busiest, short(float64(slices.Max(load))/float64(max(sum, 1))))
		x.Entropy, x.Unused = append(x.Entropy, short(entropy)), append(x.Unused, unused)
	}
	return x
}

// short is a number with four digits after the point: a record has two for each layer.
func short(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// Worst is the layer, counted among those with experts, whose busiest expert has the largest share.
func (x *Experts) Worst() (layer int) {
	for l, share := range x.Busiest {
		if share > x.Busiest[layer] {
			layer = l
		}
	}
	return layer
}

// AllUnused is the number of experts that no row chose, of all layers.
func (x *Experts) AllUnused() (n int) {
	for _, m := range x.Unused {
		n += m
	}
	return n
}
