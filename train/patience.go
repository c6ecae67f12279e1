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

// evaluations are those of a run: what the latest found, and for how long they found no lower loss.
type evaluations struct {
	patience int                 // stop.patience
	loss     *float64            // after the latest step, if there was an evaluation
	plateau  *checkpoint.Plateau // of all so far
}

// note counts an evaluation after the latest step.
func (e *evaluations) note(loss float64) { e.loss, e.plateau = &loss, after(e.plateau, loss) }

// outOfPatience reports whether the run ends here, whatever steps are left: its latest evaluations found no lower loss.
func (e *evaluations) outOfPatience() bool { return exhausts(e.plateau, e.patience) }

// noteEarlyEnd says why the run ends before its last step, if it does.
func (t *trainer) noteEarlyEnd() {
	if !t.evals.outOfPatience() || t.steps >= t.rates.Steps {
		return
	}
	t.summary.EvalsNotLower = t.evals.plateau.Evaluations
	t.tell(Stopping{Step: t.steps, Steps: t.rates.Steps, Why: notLower(t.evals.plateau)})
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
