package train

import "math"

// leastTrendSteps is the least number of steps of whose training loss a summary says how it went. The loss of a step is that of a
// small batch: from one step to another it differs by more than training changes it in a few.
const leastTrendSteps = 30

// trendBins bounds what a trend keeps.
const trendBins = 1024

// trend keeps the training losses of a run in the order of its steps, in bins of equally many, so that the first and the last tenth of
// however many steps have a mean each.
type trend struct {
	width float64 // steps of a whole bin; 0 is 1
	bins  []lossSums
}

// lossSums are sums over the losses of steps.
type lossSums struct{ steps, loss, squares float64 }

func (a lossSums) plus(b lossSums) lossSums {
	return lossSums{a.steps + b.steps, a.loss + b.loss, a.squares + b.squares}
}

func (a lossSums) mean() float64 { return a.loss / a.steps }

// variance estimates the variance of the mean, from the differences between the steps.
func (a lossSums) variance() float64 {
	return max(0, a.squares/a.steps-a.mean()*a.mean()) / max(1, a.steps-1)
}

func (t *trend) add(loss float64) {
	t.width = max(t.width, 1)
	if n := len(t.bins); n == 0 || t.bins[n-1].steps == t.width {
		if n == trendBins {
			for i := range n / 2 {
				t.bins[i] = t.bins[2*i].plus(t.bins[2*i+1])
			}
			t.bins, t.width = t.bins[:n/2], 2*t.width
		}
		t.bins = append(t.bins, lossSums{})
	}
	last := &t.bins[len(t.bins)-1]
	*last = last.plus(lossSums{1, loss, loss * loss})
}

// LossTrend compares the training losses of the first tenth of a process's steps with those of the last tenth.
type LossTrend struct {
	First float64 `json:"first_loss"` // means over steps
	Last  float64 `json:"last_loss"`
	Steps int     `json:"steps"` // of the first tenth; the last one has about as many
	// Rose: the last mean is larger, by more than twice the standard error of their difference.
	Rose bool `json:"rose"`
}

// RewardTrend compares the mean rewards of the first tenth of a process's steps with those of the last tenth.
type RewardTrend struct {
	First float64 `json:"first"` // means over steps
	Last  float64 `json:"last"`
	Steps int     `json:"steps"` // of the first tenth
}

// ends returns the means of the first and the last tenth of the steps, or nil before the first one.
func (t *trend) ends() *RewardTrend {
	if len(t.bins) == 0 {
		return nil
	}
	_, first, last := t.sums()
	return &RewardTrend{First: first.mean(), Last: last.mean(), Steps: int(first.steps)}
}

// sums adds up the losses of all steps, and of the first and the last tenth of them.
func (t *trend) sums() (all, first, last lossSums) {
	tenth := (len(t.bins) + 9) / 10
	for i, b := range t.bins {
		all = all.plus(b)
		if i < tenth {
			first = first.plus(b)
		}
		if i >= len(t.bins)-tenth {
			last = last.plus(b)
		}
	}
	return all, first, last
}

// tenths returns the trend of a run, or nil for too few steps or where a loss is not finite.
func (t *trend) tenths() *LossTrend {
	all, first, last := t.sums()
	if all.steps < leastTrendSteps || math.IsNaN(all.squares) || math.IsInf(all.squares, 0) {
		return nil
	}
	return &LossTrend{First: first.mean(), Last: last.mean(), Steps: int(first.steps),
		Rose: last.mean()-first.mean() > 2*math.Sqrt(first.variance()+last.variance())}
}
