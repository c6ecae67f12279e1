package sweep

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// SeedKey is the key whose values tell how much of a difference is chance.
const SeedKey = "seed"

// Setting is a combination of the values of all keys but seed, with the mean of its runs.
type Setting struct {
	Values []string // by key; that of seed is empty
	Mean   float64  // of the losses
	Runs   int      // one for each seed
}

// Verdict compares the settings of a sweep.
type Verdict struct {
	// Settings have a loss for each seed, and are sorted from the least mean. One with a run that has no loss is left out.
	Settings []Setting
	Seeds    int
	// Noise is the difference of two means that seeds alone exceed in one of twenty comparisons; nil where there are
	// fewer than two seeds or settings.
	Noise *float64
}

// Difference returns the mean of the second setting less that of the best one; 0 where there is one alone.
func (v *Verdict) Difference() float64 {
	if len(v.Settings) < 2 {
		return 0
	}
	return v.Settings[1].Mean - v.Settings[0].Mean
}

// Judge compares runs by their losses, in the order of runs; NaN or an infinity stands for one that is not known.
//
// Each setting ran with the same seeds, so the sweep is a complete block design: with the loss of setting i and seed j
// as the sum of a mean, an effect of the setting, one of the seed and a rest, the variance of the rest is estimated
// from (settings-1)(seeds-1) degrees of freedom, and two means differ by chance by Student's t times the root of twice
// that variance over the number of seeds (Fisher's least significant difference; Montgomery, Design and Analysis of
// Experiments, chapter 4). An effect of the seed on all settings, as that of other held-out documents, cancels.
func Judge(keys []Key, runs []Run, losses []float64) (v Verdict) {
	seedAt := slices.IndexFunc(keys, func(k Key) bool { return k.Name == SeedKey })
	v.Seeds = 1
	if seedAt >= 0 {
		v.Seeds = len(keys[seedAt].Values)
	}
	type block struct {
		values []string
		losses []float64
	}
	byName := map[string]*block{}
	var all []*block
	for i, r := range runs {
		values := slices.Clone(r.Values)
		if seedAt >= 0 {
			values[seedAt] = ""
		}
		name := strings.Join(values, "\x00")
		if byName[name] == nil {
			byName[name] = &block{values: values}
			all = append(all, byName[name])
		}
		if x := losses[i]; !math.IsNaN(x) && !math.IsInf(x, 0) {
			byName[name].losses = append(byName[name].losses, x)
		}
	}
	all = slices.DeleteFunc(all, func(b *block) bool { return len(b.losses) < v.Seeds })
	perSeed, mean := make([]float64, v.Seeds), 0.0
	n, seeds := float64(len(all)), float64(v.Seeds)
	for _, b := range all {
		s := Setting{Values: b.values, Runs: v.Seeds}
		for j, x := range b.losses {
			s.Mean += x / seeds
			perSeed[j] += x / n
		}
		mean += s.Mean / n
		v.Settings = append(v.Settings, s)
	}
	if len(all) > 1 && v.Seeds > 1 {
		rest := 0.0
		for i, b := range all {
			for j, x := range b.losses {
				r := x - v.Settings[i].Mean - perSeed[j] + mean
				rest += float64(r * r)
			}
		}
		freedom := (len(all) - 1) * (v.Seeds - 1)
		noise := studentT(freedom) * math.Sqrt(2*rest/float64(freedom)/seeds)
		v.Noise = &noise
	}
	slices.SortStableFunc(v.Settings, func(a, b Setting) int { return cmp.Compare(a.Mean, b.Mean) })
	return v
}

// quantiles has the 0.975 quantiles of Student's t distribution for 1 to 30 degrees of freedom.
var quantiles = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
	2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042}

// studentT returns that quantile. Beyond the table it is 1.96 + 2.4/n, which is within 0.003 of it.
func studentT(freedom int) float64 {
	if freedom <= len(quantiles) {
		return quantiles[freedom-1]
	}
	return 1.96 + 2.4/float64(freedom)
}
