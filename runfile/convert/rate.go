package convert

import (
	"fmt"
	"math"
	"strconv"
)

// rate makes the settings of the learning rate and its way.
func (c *conversion) rate() {
	key, v := c.take("learning_rate", "lr")
	x, isSaid := number(v)
	how := ""
	if !isSaid {
		x, _ = number(c.usual.rate)
		how = fmt.Sprintf("the file does not say; %s has %s", c.result.Tool, c.usual.rate)
		if c.result.Tool != TRL && c.result.Tool != LLaMAFactoryV1 {
			c.decide(given(key), "learning_rate: the file does not say")
		}
	}
	if adapter := c.adapters(); adapter != "" {
		how = fmt.Sprintf("a tenth of %s, which is for an adapter", numeral(x))
		c.decide(nil, "learning_rate: it is a tenth of %s, since the file trains an adapter (%s). All parameters need a "+
			"lower one than an adapter, and which is best depends on the data", numeral(x), adapter)
		x = tenth(x)
	}
	c.set("learning_rate", numeral(x), given(key), "%s", how)
	c.schedule()
	steps, n := c.take("warmup_steps", "num_warmup_steps")
	ratio, r := c.take("warmup_ratio")
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

// tenth is a tenth of a number, without the digits that a division adds.
func tenth(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x/10, 'g', 12, 64), 64)
	if err != nil {
		return x / 10
	}
	return y
}

// schedules are the learning-rate schedules of the other trainers that Millrace has, and what comes next to others.
var schedules = map[string]struct {
	name string
	same bool
}{
	"linear": {"linear", true}, "cosine": {"cosine", true}, "constant": {"constant", true},
	"constant_with_warmup": {"constant", true},
	"warmup_stable_decay":  {"wsd", true}, "polynomial": {"linear", false}, "inverse_sqrt": {"constant", false},
	"reduce_lr_on_plateau": {"constant", false},
}

func (c *conversion) schedule() {
	key, v := c.take("lr_scheduler_type", "lr_scheduler")
	name := textOf(v)
	s, known := schedules[name]
	kwargs, more := c.take("lr_scheduler_kwargs")
	switch {
	case name == "warmup_stable_decay":
		c.set("lr_scheduler", s.name, []string{key}, "")
		with := ""
		if !isOff(more) {
			with = " with " + kwargs + " " + shown(more)
		}
		c.decide(given(key, kwargs), "lr_scheduler: wsd falls in a line over the last tenth of the steps; the file has "+
			"warmup_stable_decay%s, which falls over num_decay_steps, like a cosine unless decay_type is linear", with)
		return
	case key == "":
		c.set("lr_scheduler", c.usual.schedule, nil, "the file does not say; %s has %s", c.result.Tool, c.usual.schedule)
	case known && s.same:
		c.set("lr_scheduler", s.name, []string{key}, "")
	default:
		if !known {
			s.name = "cosine"
		}
		c.set("lr_scheduler", s.name, []string{key}, "it was %s, which Millrace does not have", shown(v))
		c.decide(given(key), "lr_scheduler: it was %s; %s is the nearest one here", shown(v), s.name)
	}
	if !isOff(more) {
		c.decide(given(kwargs), "lr_scheduler: the file has lr_scheduler_kwargs %s; cosine and linear end at 0 here, with "+
			"the last step", shown(more))
	}
}
