package rl

import (
	"math"

	"github.com/millrace/millrace/train/rl/reward"
)

// figures counts the facts of a round that its records have, besides what the objective says of its answers.
func (l *Loop) figures(s *sampled) map[string]float64 {
	all := map[string]float64{"rollout_sec": s.rolloutSec, "score_sec": s.scoringSec,
		"rollout_tokens_per_sec": float64(s.tokens) / math.Max(s.rolloutSec, 1e-9),
		"staleness":              float64(s.lag) / float64(s.all)}
	if s.residentBytes > 0 {
		all["rollout_resident_bytes"] = float64(s.residentBytes)
	}
	if l.Config.MaxGroups > 0 {
		all["groups_left_out"] = float64(s.alike)
	}
	if s.stale > 0 {
		all["stale_answers"] = float64(s.stale)
	}
	for i, name := range l.Panel.Names() {
		nulls, faults := 0, 0
		sums, counts := map[string]float64{}, map[string]int{} // of metrics, over the answers that have them
		for _, wave := range s.tallies {
			for cause, n := range wave[i].Counts {
				switch c := reward.Cause(cause); {
				case c == reward.Null || c == reward.Lacking:
					nulls += n
				case c != reward.Scored:
					faults += n
				}
			}
			for key, x := range wave[i].Metrics {
				n := wave[i].MetricOf[key]
				sums[key], counts[key] = sums[key]+float64(x*float64(n)), counts[key]+n
			}
		}
		all["rewards/"+name+"/null"], all["rewards/"+name+"/failed"] = float64(nulls), float64(faults)
		for key, sum := range sums {
			all["rewards/"+name+"/"+key] = sum / float64(counts[key])
		}
	}
	return all
}
