package train

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/spelling"
)

// after returns the plateau with one more evaluation. Nil stands for one without evaluations.
func after(p *checkpoint.Plateau, loss float64) *checkpoint.Plateau {
	var now checkpoint.Plateau
	if p != nil {
		now = *p
	}
	now.Evaluations++
	if !math.IsNaN(loss) && !math.IsInf(loss, 0) && (now.Lowest == nil || loss < *now.Lowest) {
		now = checkpoint.Plateau{Lowest: &loss}
	}
	return &now
}

// exhausts reports whether a plateau ends a run with this stop.patience.
func exhausts(p *checkpoint.Plateau, patience int) bool {
	return patience > 0 && p != nil && p.Evaluations >= patience
}

// outOfPatience reports whether the run ends here, whatever steps are left: its latest evaluations found no lower loss.
func (t *trainer) outOfPatience() bool { return exhausts(t.plateau, t.config.Stop.Patience) }

// isOver reports whether the run takes no further step.
func (t *trainer) isOver() bool { return t.steps >= t.rates.Steps || t.outOfPatience() }

// noteEarlyEnd says why the run ends before its last step, if it does.
func (t *trainer) noteEarlyEnd() {
	if !t.outOfPatience() || t.steps >= t.rates.Steps {
		return
	}
	t.summary.EvalsNotLower = t.plateau.Evaluations
	t.env.say("stopping after step %d of %d: %s (stop.patience)", t.steps, t.rates.Steps, notLower(t.plateau))
}

// notLower says for how long the evaluation loss has not fallen.
func notLower(p *checkpoint.Plateau) string {
	lowest := ""
	if p.Lowest != nil {
		lowest = fmt.Sprintf(" than %.4f", *p.Lowest)
	}
	return fmt.Sprintf("the eval loss was not lower%s in %s in a row", lowest,
		spelling.Count(p.Evaluations, "evaluation"))
}
