package checkpoint

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/internal/spelling"
)

// After returns the plateau with one more evaluation. Nil stands for one without evaluations.
func (p *Plateau) After(loss float64) *Plateau {
	var now Plateau
	if p != nil {
		now = *p
	}
	now.Evaluations++
	if !math.IsNaN(loss) && !math.IsInf(loss, 0) && (now.Lowest == nil || loss < *now.Lowest) {
		now = Plateau{Lowest: &loss}
	}
	return &now
}

// Exhausts reports whether the plateau ends a run with this stop.patience.
func (p *Plateau) Exhausts(patience int) bool {
	return patience > 0 && p != nil && p.Evaluations >= patience
}

// NotLower says for how long the evaluation loss has not fallen.
func (p *Plateau) NotLower() string {
	lowest := ""
	if p.Lowest != nil {
		lowest = fmt.Sprintf(" than %.4f", *p.Lowest)
	}
	return fmt.Sprintf("the eval loss was not lower%s in %s in a row", lowest,
		spelling.Count(p.Evaluations, "evaluation"))
}
