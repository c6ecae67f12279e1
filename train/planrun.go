package train

import (
	"context"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// PlanRun plans what Train would run, from config.json alone: it reads no data and no weights.
func PlanRun(ctx context.Context, env *Env, c *Config) (*plan.Plan, device.Info, plan.Machine, error) {
	none := func(err error) (*plan.Plan, device.Info, plan.Machine, error) {
		return nil, device.Info{}, plan.Machine{}, err
	}
	src, err := openModel(ctx, env, c.Model)
	if err != nil {
		return none(err)
	}
	dev, err := env.open(c.Device)
	if err != nil {
		return none(Request(err))
	}
	defer dev.Close()
	info := dev.computes.Info()
	p, err := env.makePlan(c, src.model, info)
	if err != nil {
		return none(err)
	}
	return p, info, env.machine(info), nil
}
