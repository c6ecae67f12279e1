package plan

import "github.com/millrace/millrace/optim"

// Updates of masters of 24 bits make random words, and so are bound by a core's arithmetic as those with moments in 8
// bits are. So their rate is told by that one, which is measured or assumed: benchmarks/adamw has 1.9 (AVX-512) to 2.8
// times (AVX2) that rate for fp32 moments, 0.81 to 0.94 of it for those in 8 bits, of which both forms make the words.
const (
	master24Times = 2
	master24Share = 0.82
)

// updateBytesPerSec is the rate of the host's updates under a scheme.
func (m *Machine) updateBytesPerSec(s optim.Scheme) float64 {
	rate := m.UpdateBytesPerSec(s.Moments)
	switch {
	case s.Master != optim.Split24:
		return rate
	case s.Moments != optim.MomentsF32:
		return master24Share * rate
	}
	return min(rate, master24Times*m.UpdateBytesPerSec(optim.Dynamic8))
}
