package convert

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/millrace/millrace/runfile"
)

// rate makes the settings of the learning rate and its way.
func (c *conversion) rate() {
	key, v := c.takeFor("learning_rate")
	x, isSaid := number(v)
	how := ""
	if !isSaid {
		usual := c.usual.rate
		if c.result.Tool == TRL && c.goal.kind != "" {
			if usual = "1e-6"; c.goal.kind == scored { // of the configurations of all its trainers but that of SFT
				usual = "1e-4"
			}
		}
		x, _ = number(usual)
		how = fmt.Sprintf("the file does not say; %s has %s", c.result.Tool, usual)
		if c.result.Tool != TRL && c.result.Tool != Verl && c.result.Tool != LLaMAFactoryV1 {
			c.decide(given(key), "learning_rate: the file does not say")
		}
	}
	old := x
	if adapter := c.adapters(); adapter != "" && c.goal.kind != "" && c.goal.kind != scored {
		x, how = c.comparedRate(x, adapter)
	} else if adapter != "" {
		how = fmt.Sprintf("a tenth of %s, which is for an adapter", numeral(x))
		c.decide(nil, "learning_rate: it is a tenth of %s, since the file trains an adapter (%s). All parameters need a "+
			"lower one than an adapter, and which is best depends on the data", numeral(x), adapter)
		x = short(x / 10)
	}
	c.set("learning_rate", numeral(x), given(key), "%s", how)
	c.schedule(old, x)
	steps, n := c.takeFor("warmup_steps")
	ratio, r := c.take("warmup_ratio", verlActor+"optim.lr_warmup_steps_ratio")
	x, isSteps := number(n)
	share, isRatio := number(r)
	switch {
	case isSteps && x >= 1:
		c.set("warmup_steps", numeral(math.Ceil(x)), []string{steps}, "")
		c.dismiss(steps+" is set", given(ratio)...)
	case isSteps && x > 0:
		c.set("warmup_ratio", numeral(x), []string{steps}, "below 1 it is a share of all steps")
		c.dismiss(steps+" is set", given(ratio)...)
	case isRatio && share > 0:
		c.set("warmup_ratio", numeral(share), []string{ratio}, "")
	case c.result.Tool == Axolotl && steps == "" && ratio == "":
		c.set("warmup_ratio", "0.03", nil, "the file does not say; Axolotl has 0.03, and at most 100 steps")
	}
}

// Rates between which preferences are usually trained with all parameters, by docs/preferences.md. They follow from
// pairs of files of the same authors too: the alignment handbook's zephyr-7b has 5e-7, and 5e-6 for its adapter.
const (
	leastComparedRate = 5e-7
	mostComparedRate  = 5e-6
)

// comparedRate is the rate of all parameters where a file has one for an adapter: a tenth, as without preferences, and
// within the usual range. Files with 2e-4 would otherwise have 2e-5, four times the highest usual rate, and those with
// TRL's default of 1e-6, which is meant for all parameters, 1e-7.
func (c *conversion) comparedRate(old float64, adapter string) (rate float64, how string) {
	rate = short(min(max(old/10, min(leastComparedRate, old)), mostComparedRate))
	how = fmt.Sprintf("for an adapter it was %s", numeral(old))
	c.decide(nil, "learning_rate: the file trains an adapter (%s) with %s. All parameters need a tenth, and with "+
		"preferences and rewards %s to %s is usual, so it is %s", adapter, numeral(old), numeral(leastComparedRate),
		numeral(mostComparedRate), numeral(rate))
	return rate, how
}

// short is a number without the digits that a product adds.
func short(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 12, 64), 64)
	if err != nil {
		return x
	}
	return y
}

// schedules are the learning-rate schedules of the other trainers that Millrace has, and what comes next to others.
var schedules = map[string]struct {
	name string
	same bool
}{
	"linear": {"linear", true}, "cosine": {"cosine", true}, "constant": {"constant", true},
	"constant_with_warmup": {"constant", true}, "cosine_with_min_lr": {"cosine", true},
	"warmup_stable_decay": {"wsd", true}, "polynomial": {"linear", false}, "inverse_sqrt": {"constant", false},
	"reduce_lr_on_plateau": {"constant", false},
}

// schedule sets the way of a rate, which was old in the file, and the rate at which it ends.
func (c *conversion) schedule(old, rate float64) {
	key, v := c.takeFor("lr_scheduler")
	name := textOf(v)
	s, known := schedules[name]
	switch {
	case key == "":
		s.name = c.usual.schedule
		c.set("lr_scheduler", s.name, nil, "the file does not say; %s has %s", c.result.Tool, s.name)
	case known && s.same:
		c.set("lr_scheduler", s.name, []string{key}, "")
	default:
		if !known {
			s.name = "cosine"
		}
		c.set("lr_scheduler", s.name, []string{key}, "it was %s, which Millrace does not have", shown(v))
		c.decide(given(key), "lr_scheduler: it was %s; %s is the nearest one here", shown(v), s.name)
	}
	kwargs, more := c.take("lr_scheduler_kwargs")
	rest := c.floor(s.name, kwargs, more, old, rate)
	if name == "warmup_stable_decay" {
		with := ""
		if len(rest) > 0 {
			with = " with " + kwargs + " " + shown(rest)
		}
		c.decide(given(kwargs), "lr_scheduler: wsd falls in a line over the last tenth of the steps; the file has "+
			"warmup_stable_decay%s, which falls over num_decay_steps, like a cosine unless decay_type is linear", with)
	} else if len(rest) > 0 {
		c.decide(given(kwargs), "lr_scheduler: the file has %s %s, which Millrace does not have", kwargs, shown(rest))
	}
}

// floor sets the rate at which a schedule ends, and returns the other arguments of the schedule. Its share of the rate
// is that of the file, whose rate was old.
func (c *conversion) floor(schedule, kwargs string, more any, old, rate float64) (rest map[string]any) {
	if text, ok := more.(string); ok { // as on a command line
		if mapping, err := runfile.Mapping([]byte(text)); err == nil {
			more = mapping
		}
	}
	args, isMapping := more.(map[string]any)
	if !isMapping && !isOff(more) {
		rest = map[string]any{kwargs: more}
	}
	share, from, how := 0.0, "", ""
	take := func(name string, x, part float64) { share, from, how = part, kwargs, name+" is "+numeral(x) }
	for _, name := range slices.Sorted(maps.Keys(args)) {
		v := args[name]
		switch x, ok := number(v); {
		case ok && name == "min_lr" && old > 0:
			take(name, x, x/old)
		case ok && (name == "min_lr_rate" || name == "min_lr_ratio"):
			take(name, x, x)
		default:
			if rest == nil {
				rest = map[string]any{}
			}
			rest[name] = v
		}
	}
	if key, v := c.take("cosine_min_lr_ratio", verlActor+"optim.min_lr_ratio"); key != "" {
		if x, ok := number(v); ok && x > 0 {
			share, from, how = x, key, numeral(x)+" of learning_rate"
		}
	}
	switch {
	case share <= 0:
	case schedule == "constant":
		c.decide([]string{from}, "min_learning_rate: %s, and constant has no end", how)
	default:
		c.set("min_learning_rate", numeral(short(rate*min(share, 1))), []string{from}, "%s", how)
	}
	return rest
}
