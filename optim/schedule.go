package optim

import (
	"fmt"
	"math"
)

// Shape is the form of a learning-rate schedule after its warm-up.
type Shape string

// The shapes, under the names that run.yaml uses.
const (
	Constant Shape = "constant"
	Linear   Shape = "linear" // falls to the floor at the last step
	Cosine   Shape = "cosine" // half a cosine, to the floor
	// WSD is warm-up, stable, decay: constant, then linear to the floor over the last tenth of the steps, rounded down
	// to whole steps, and at least one. Source: Hu et al., "MiniCPM" (2024).
	WSD Shape = "wsd"
)

// wsdDecayShare is the part of the steps in which WSD falls: one in ten.
const wsdDecayShare = 10

// Schedule is the learning rate over the steps of a run.
type Schedule struct {
	Shape       Shape
	Peak        float64
	Floor       float64 // that Linear, Cosine and WSD fall to; the warm-up begins at 0
	WarmupSteps int
	Steps       int // in the whole run
}

// Check refuses a schedule that At could not follow.
func (s Schedule) Check() error {
	switch s.Shape {
	case Constant, Linear, Cosine, WSD:
	default:
		return fmt.Errorf("lr_scheduler is %q: use cosine, linear, constant or wsd", s.Shape)
	}
	switch {
	case s.Steps < 1:
		return fmt.Errorf("a run of %d steps: max_steps must be at least 1", s.Steps)
	case s.WarmupSteps < 0:
		return fmt.Errorf("warmup_steps is %d: it must not be negative", s.WarmupSteps)
	case !(s.Peak >= 0) || math.IsInf(s.Peak, 0):
		return fmt.Errorf("learning_rate is %v: it must be finite and not negative", s.Peak)
	case !(s.Floor >= 0) || math.IsInf(s.Floor, 0):
		return fmt.Errorf("min_learning_rate is %v: it must be finite and not negative", s.Floor)
	case s.Floor > s.Peak:
		return fmt.Errorf("min_learning_rate is %v, above learning_rate (%v): lower it", s.Floor, s.Peak)
	case s.Floor > 0 && s.Shape == Constant:
		return fmt.Errorf("min_learning_rate is %v, and lr_scheduler: constant never falls: remove it, or use cosine, "+
			"linear or wsd", s.Floor)
	}
	return nil
}

// At is the learning rate of a step, counted from 1. As in transformers, the factor belongs to step-1 steps taken:
// with a warm-up the first step has rate 0.
func (s Schedule) At(step int) float64 {
	done := float64(step - 1)
	warm, total := float64(s.WarmupSteps), float64(s.Steps)
	if done < warm {
		return s.Peak * done / warm
	}
	left := max(total-warm, 1)
	progress := min((done-warm)/left, 1)
	above := s.Peak - s.Floor
	switch s.Shape {
	case Linear:
		return s.Floor + float64(above*(1-progress))
	case Cosine:
		return s.Floor + float64(above*0.5*(1+math.Cos(math.Pi*progress)))
	case WSD:
		if decay := float64(max(s.Steps/wsdDecayShare, 1)); done > total-decay {
			return s.Floor + float64(above*max(total-done, 0)/decay)
		}
	}
	return s.Peak
}
