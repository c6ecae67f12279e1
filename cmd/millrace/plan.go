package main

import (
	"encoding/json"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train"
)

type planCmd struct {
	File     string   `arg:"" optional:"" name:"run.yaml" help:"Run file; run.yaml where neither it nor --model is given."`
	Model    string   `placeholder:"DIR" help:"Plan for this model with the defaults of a run file; weights and data are not needed."`
	Set      []string `sep:"none" placeholder:"KEY=VALUE" help:"Set a key of the run file, such as memory.device=2GiB. May be repeated."`
	Schedule bool     `help:"Print the steps as lists of operations instead: the first one, and one of those that follow."`
	JSON     bool     `help:"Print the plan as JSON, as a run writes it to plan.json."`
}

func (*planCmd) Help() string {
	return `Memory by tier and purpose, what is kept where, and how long a step should take. The prediction uses what
"millrace probe" measured, else a guess that says so. A plan that does not fit names the number to change and ends with status 2.

Examples:

  millrace plan run.yaml --set memory.device=1GiB
  millrace plan --model models/qwen3-8b --set sequence_len=4096 --set batch_tokens=65536

The second one needs only config.json.`
}

// Run plans.
func (c *planCmd) Run(p *program) error {
	config, err := c.read()
	if err != nil {
		return err
	}
	made, dev, machine, err := train.PlanRun(p.ctx, p.env, config)
	if err != nil {
		return err
	}
	switch {
	case c.JSON:
		return p.printJSON(made)
	case c.Schedule:
		return p.printf("first step\n\n%s\nevery other step\n\n%s\nend\n\n%s", made.Schedule(plan.Prologue), made.Schedule(plan.Steady), made.Schedule(plan.Flush))
	}
	return p.printf("%s", made.Explain(dev, machine))
}

// read reads the run file or, for a model alone, makes one with data that a plan does not look at.
func (c *planCmd) read() (*train.Config, error) {
	if c.Model == "" {
		file := c.File
		if file == "" {
			file = "run.yaml"
		}
		return readRunFile(file, c.Set)
	}
	first := []string{"model=" + yamlString(c.Model)}
	if c.File == "" {
		first = append(first, "datasets=[{path: none, type: text}]")
	}
	return train.ReadConfig(c.File, append(first, c.Set...))
}

// yamlString quotes a string so that YAML reads it as it is. A JSON string is one, too.
func yamlString(s string) string {
	doc, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return string(doc)
}
