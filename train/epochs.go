package train

import (
	"math"
	"strconv"

	"github.com/millrace/millrace/checkpoint"
)

// stepRange is a number of steps rounded up, and rounded down.
type stepRange struct{ up, down int }

// epochSteps are the steps that a number of epochs takes, of those that whole epochs take. The last epoch may be asked
// for in part. Then a step that has begun counts, as in transformers' Trainer:
// max_steps = ceil(num_train_epochs * num_update_steps_per_epoch).
func epochSteps(all int, asked float64, whole int) stepRange {
	exact := float64(all)
	if asked > 0 {
		exact *= asked / float64(whole)
	}
	const noise = 1e-9 // of the multiplication: 1.1 times 10 is a little above 11
	return stepRange{max(int(math.Ceil(exact*(1-noise))), 1), max(int(exact), 1)}
}

// stepsOf is the number of all steps of a run that continues from a checkpoint, nil for none. Versions of this program
// that rounded down had one step less for some numbers of epochs; a run that has begun or ended with that keeps it.
func (t *trainer) stepsOf(from *checkpoint.Checkpoint) int {
	if t.config.MaxSteps > 0 {
		return t.config.MaxSteps
	}
	down := t.at.Since + t.dataSteps.down
	began := from != nil && from.Manifest.Mathematics["steps"] == strconv.Itoa(down)
	ended := from == nil && t.home.ID.Ended != nil && !t.home.ID.Ended.Diverged && t.home.ID.Ended.Step == down
	if began || ended {
		return down
	}
	return t.at.Since + t.dataSteps.up
}
