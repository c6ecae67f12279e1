// Package convert makes a run file of a training file of LLaMA-Factory, Axolotl, TRL, verl or Hugging Face's Trainer,
// or of a shell script that gives TRL or verl its settings.
//
//   - [File] converts one; [Result] is the run file and what was said about it.
//
// Each setting of the result says where it comes from: keys that it was called by, values that were computed, and
// defaults of the other trainer that are not those of Millrace. What has no counterpart is listed with the reason, from
// package othertrainers, and what the file does not say is listed as to be decided.
//
// What Millrace cannot train, by the model or by the objective, is in [Result.Cannot], and the run file exists
// nevertheless. Package model says which families can be trained; models.yaml, of which family a model is by its name.
//
// Invariants: the result is a run file that [runfile.Parse] takes, or there is an error; every key of the input is in a
// setting, in what is to be decided, or among those left out.
package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/runfile/othertrainers"
)

// Tool is a trainer whose files are read.
type Tool string

// The trainers.
const (
	LLaMAFactory   Tool = "LLaMA-Factory"
	LLaMAFactoryV1 Tool = "LLaMA-Factory v1" // its own keys: train_dataset, peft_config, dist_config, ...
	Axolotl        Tool = "Axolotl"
	TRL            Tool = "TRL"
	Verl           Tool = "verl"
	HFTrainer      Tool = "Hugging Face Trainer"
)

// Result is a converted file.
type Result struct {
	Tool     Tool      `json:"tool"`
	Cannot   []string  `json:"cannot,omitempty"` // why Millrace cannot train what the file asks for
	Settings []Setting `json:"settings"`
	LeftOut  []LeftOut `json:"left_out"`
	Decide   []string  `json:"decide"`   // what the file does not say, or says of something else
	RunFile  string    `json:"run_file"` // with all of the above in comments
}

// Setting is a key of the run file.
type Setting struct {
	Key   string   `json:"key"`
	Value string   `json:"value"`          // as YAML
	From  []string `json:"from,omitempty"` // keys of the other trainer
	How   string   `json:"how,omitempty"`  // how its value came about, where it is not theirs as it was
}

// LeftOut are keys without a counterpart.
type LeftOut struct {
	Keys []string `json:"keys"`
	Why  string   `json:"why"`
}

// File converts a file. Its name is for comments, and may say what a file of TRL is for. It reads the model's
// directory and a list of data sets if the file names some that exist.
func File(name string, doc []byte) (*Result, error) {
	r, err := translate(name, doc)
	if err != nil {
		return nil, err
	}
	config, err := runfile.Parse([]byte(r.RunFile))
	if err == nil {
		_, err = config.Objective.Open()
	}
	if err != nil {
		return nil, fmt.Errorf("a value of the file is not one that Millrace takes: %w", err)
	}
	return r, nil
}

// translate converts a file. Nothing has read the run file yet.
func translate(name string, doc []byte) (*Result, error) {
	c := &conversion{name: name, used: map[string]bool{}, decided: map[string]bool{}, dismissed: map[string]string{}}
	if err := c.read(doc); err != nil {
		return nil, err
	}
	c.usual = usualOf[c.result.Tool]
	c.judge()
	if err := c.convert(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(c.result.Settings, func(a, b Setting) int { return runfile.Order(a.Key) - runfile.Order(b.Key) })
	c.leaveOut()
	c.result.RunFile = c.result.text(name)
	return &c.result, nil
}

// read reads the settings of the file, and tells whose they are.
func (c *conversion) read(doc []byte) (err error) {
	if isScript(c.name, doc) {
		var s *script
		if c.values, c.program, s = readScript(doc); len(c.values) == 0 {
			return errors.New("no command in this script has settings: name one that starts verl, with words such as " +
				"data.train_batch_size=64, or a script of TRL, with words such as --learning_rate 1e-6")
		}
		unknown, unsure := s.undecided()
		if len(unknown) > 0 {
			c.decide(nil, "the script does not say what %s is: write that out in the values below", plainList(unknown))
		}
		if len(unsure) > 0 {
			c.decide(nil, "the script sets %s in branches, of which the last one is taken: compare the values below",
				plainList(unsure))
		}
		if s.others > 0 {
			c.decide(nil, "the script has %s with settings, and this is the one with most",
				spelling.Count(s.others+1, "command"))
		}
	} else if c.values, err = runfile.Mapping(doc); err != nil {
		return err
	}
	if hasDots := func(key string) bool { return strings.Contains(key, ".") }; c.program != "" && !isVerl(c.values) &&
		slices.ContainsFunc(slices.Collect(maps.Keys(c.values)), hasDots) {
		return errors.New("this script has settings of Hydra, and none of actor_rollout_ref: of verl, convert reads its " +
			"reinforcement learning; name a script of that")
	}
	if isVerl(c.values) {
		c.values, c.result.Tool = flatVerl(c.values), Verl
		return nil
	}
	c.result.Tool, err = toolOf(c.values)
	return err
}

// conversion is a file on its way.
type conversion struct {
	name      string // the file's
	program   string // that a script starts; empty: the file is no script
	values    map[string]any
	used      map[string]bool   // keys that were looked at
	decided   map[string]bool   // keys that something is to be decided about
	dismissed map[string]string // keys that need no setting, and why
	usual     usual             // what the trainer does where the file is silent
	family    string            // the model's model_type; empty if it is not known
	goal      goal
	loop      loop
	result    Result
}

// set adds a setting.
func (c *conversion) set(key, value string, from []string, how string, args ...any) {
	c.result.Settings = append(c.result.Settings, Setting{key, value, from, fmt.Sprintf(how, args...)})
}

// decide adds something to decide, which keys of the file made necessary.
func (c *conversion) decide(keys []string, format string, args ...any) {
	for _, key := range keys {
		c.decided[key] = true
	}
	c.result.Decide = append(c.result.Decide, fmt.Sprintf(format, args...))
}

// dismiss says why keys of the file need no setting.
func (c *conversion) dismiss(why string, keys ...string) {
	for _, key := range keys {
		c.dismissed[key] = why
	}
}

// setting finds the setting of a key; nil if the file has not led to one.
func (c *conversion) setting(key string) *Setting {
	if i := slices.IndexFunc(c.result.Settings, func(s Setting) bool { return s.Key == key }); i >= 0 {
		return &c.result.Settings[i]
	}
	return nil
}

// takeFor is take of the names that a key of a run file has anywhere.
func (c *conversion) takeFor(key string) (from string, value any) {
	return c.take(append([]string{key}, othertrainers.For(key)...)...)
}

// take returns the value of the first of some keys that has one. All of them count as used.
func (c *conversion) take(keys ...string) (key string, value any) {
	for _, k := range keys {
		v, ok := c.values[k]
		if !ok {
			continue
		}
		c.used[k] = true
		if text, isText := v.(string); key == "" && v != nil && (!isText || text != "") {
			key, value = k, v
		}
	}
	return key, value
}

// leaveOut lists the keys that no setting is made of, by reason.
func (c *conversion) leaveOut() {
	why := map[string][]string{}
	changing := map[string][]string{}
	var unknown []string
	said := c.said()
	for _, key := range slices.Sorted(maps.Keys(c.values)) {
		row, ok := othertrainers.Lookup(key)
		reason := ""
		switch value := c.values[key]; {
		case said[key]:
			continue
		case value == nil || value == "":
			reason = "without a value"
		case c.dismissed[key] != "":
			reason = c.dismissed[key]
		case (ok || c.used[key]) && (!ok || row.Drop == "" || row.Changes || row.Refuse) && isOff(value):
			reason = "it is off"
		case ok && row.Changes && !c.used[key]:
			changing[row.Drop] = append(changing[row.Drop], plainWord(key)+" is "+shown(value))
			continue
		case ok && row.Drop != "" && !c.used[key]:
			reason = row.Drop
		case ok && row.Use != "":
			c.decide(nil, "%s is %s, and is not converted: it belongs to %s", plainWord(key), shown(value), row.Use)
			continue
		case ok || c.used[key]:
			c.decide(nil, "%s is %s, and is not converted", plainWord(key), shown(value))
			continue
		default:
			unknown = append(unknown, key)
			continue
		}
		why[reason] = append(why[reason], key)
	}
	for _, reason := range slices.Sorted(maps.Keys(changing)) {
		c.decide(nil, "%s, which changes the result: %s", strings.Join(changing[reason], ", "), reason)
	}
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		c.result.LeftOut = append(c.result.LeftOut, LeftOut{why[reason], reason})
	}
	if len(unknown) > 0 {
		c.result.LeftOut = append(c.result.LeftOut, LeftOut{unknown, "it is not known"})
		c.decide(unknown, "not known, and left out: %s", plainList(unknown))
	}
}

// said are the keys that a setting is made of, or that something is to be decided about.
func (c *conversion) said() map[string]bool {
	said := maps.Clone(c.decided)
	for _, s := range c.result.Settings {
		for _, key := range s.From {
			said[key] = true
		}
	}
	return said
}

// text is the run file.
func (r *Result) text(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by millrace convert of %s (%s).\n", plainWord(name), r.Tool)
	if len(r.Cannot) > 0 {
		b.WriteString("#\n# Millrace cannot train what that file asks for:\n")
		for _, why := range r.Cannot {
			comment(&b, "#   - ", "#     ", why)
		}
	}
	if len(r.Decide) > 0 {
		b.WriteString("#\n# To decide:\n")
		for _, d := range r.Decide {
			comment(&b, "#   - ", "#     ", d)
		}
	}
	section := 0
	for _, s := range r.Settings {
		if at := sectionOf(s.Key); at != section {
			b.WriteString("\n")
			section = at
		}
		var note []string
		if len(s.From) > 1 || len(s.From) == 1 && s.From[0] != s.Key {
			note = append(note, plainList(s.From))
		}
		if s.How != "" {
			note = append(note, s.How)
		}
		writeSetting(&b, s.Key, s.Value, strings.Join(note, ": "))
	}
	if len(r.LeftOut) > 0 {
		b.WriteString("\n# Left out:\n")
		for _, l := range r.LeftOut {
			comment(&b, "#   ", "#     ", plainList(l.Keys)+": "+l.Why)
		}
	}
	return b.String()
}

// sections begin with these keys, and a blank line is before each.
var sections = []string{"model", "datasets", "max_steps", "precision", "eval"}

// sectionOf counts the sections up to that of a key.
func sectionOf(key string) (n int) {
	for n < len(sections) && runfile.Order(sections[n]) <= runfile.Order(key) {
		n++
	}
	return n
}

// writeSetting writes a line, or lines, with its note after it where there is room, else above it.
func writeSetting(b *strings.Builder, key, value, note string) {
	line := strings.TrimRight(key+": ", " ") + value
	if !strings.HasPrefix(value, "\n") {
		line = key + ": " + value
	}
	const noteAt = 40
	if !strings.Contains(value, "\n") && note != "" && max(noteAt, len(line)+2)+2+len(note) <= width {
		fmt.Fprintf(b, "%-*s# %s\n", noteAt, line+"  ", note)
		return
	}
	if note != "" {
		comment(b, "# ", "# ", note)
	}
	b.WriteString(line + "\n")
}

// width is the width of the lines of a run file.
const width = 120

// comment writes text in lines that begin with first and then with rest.
func comment(b *strings.Builder, first, rest, text string) {
	line := first
	for i, word := range strings.Fields(text) {
		switch {
		case i > 0 && len(line)+1+len(word) > width:
			b.WriteString(line + "\n")
			line = rest + word
		case i > 0:
			line += " " + word
		default:
			line += word
		}
	}
	b.WriteString(line + "\n")
}
