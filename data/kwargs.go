package data

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/internal/spelling"
)

// Kwargs are variables of a chat template besides those of the conversation, such as enable_thinking: values of JSON by
// name, as apply_chat_template of transformers takes them.
type Kwargs map[string]any

// ParseKwargs reads them from a JSON object.
func ParseKwargs(doc string) (Kwargs, error) {
	v, err := template.ParseJSON([]byte(doc))
	if err != nil {
		return nil, err
	}
	if _, ok := v.(*template.Dict); !ok {
		return nil, errors.New(`it is not a JSON object, such as {"enable_thinking": false}`)
	}
	k := Kwargs{}
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber() // 1.0 stays what a template prints so
	if err := d.Decode(&k); err != nil {
		return nil, err
	}
	return k, k.Check()
}

// String is a JSON object with sorted keys.
func (k Kwargs) String() string {
	doc, err := jsonOf(map[string]any(k))
	if err != nil {
		return err.Error() // which Check has refused
	}
	return string(doc)
}

// MarshalYAML is the JSON object, which YAML reads.
func (k Kwargs) MarshalYAML() ([]byte, error) { return []byte(k.String()), nil }

// Over are both, and those of k where both have one.
func (k Kwargs) Over(others Kwargs) Kwargs {
	if len(others) == 0 {
		return k
	}
	all := maps.Clone(others)
	maps.Copy(all, k)
	return all
}

// Check refuses names that a render gives values itself, and values that JSON does not have.
func (k Kwargs) Check() error {
	for _, name := range slices.Sorted(maps.Keys(k)) {
		if err := checkKwarg(name); err != nil {
			return err
		}
		if _, err := jsonOf(k[name]); err != nil {
			return fmt.Errorf("%s: %w", shown(name), err)
		}
	}
	return nil
}

// checkKwarg refuses a name that a render gives a value itself.
func checkKwarg(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty: write that of a variable of the chat template, such as enable_thinking")
	case !template.IsGiven(name):
		return nil
	case name == "tools" || name == "documents":
		return fmt.Errorf("%s are those of each row: leave the name out, and write them as the key %[1]s of rows", name)
	}
	return fmt.Errorf("%s has its value from the conversation, the tokenizer or the renderer: leave it out", name)
}

// values are the values as templates have them.
func (k Kwargs) values() (map[string]template.Value, error) {
	all := map[string]template.Value{}
	for name, v := range k {
		doc, err := jsonOf(v)
		if err == nil {
			all[name], err = template.ParseJSON(doc)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shown(name), err)
		}
	}
	return all, nil
}

// jsonOf is a value as JSON in one form: with sorted keys, and with a point in numbers that are not whole ones by type.
func jsonOf(v any) ([]byte, error) { return valueText(v, "null") }

// valueText is a value as JSON or, with another word for null, as an expression of Jinja, which are alike else.
func valueText(v any, null string) ([]byte, error) {
	var b bytes.Buffer
	switch v := v.(type) {
	case map[string]any:
		for i, key := range slices.Sorted(maps.Keys(v)) {
			name, err := valueText(key, null)
			if err != nil {
				return nil, err
			}
			value, err := valueText(v[key], null)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "%s%s: %s", separator("{", i), name, value)
		}
		return append(b.Bytes(), closing("{}", len(v))...), nil
	case []any:
		for i, item := range v {
			value, err := valueText(item, null)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "%s%s", separator("[", i), value)
		}
		return append(b.Bytes(), closing("[]", len(v))...), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, errors.New("a number that is not finite is no value of JSON: write another, or a text")
		}
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return []byte(text), nil
	case nil:
		return []byte(null), nil
	case bool, string, json.Number, int, int64, uint64:
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		err := e.Encode(v)
		return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
	}
	return nil, fmt.Errorf("%v is no value of JSON: write a text, a number, true, false, null, a list or a mapping", v)
}

func separator(open string, i int) string {
	if i == 0 {
		return open
	}
	return ", "
}

// closing returns the end of a list or a mapping of n items, from its two brackets.
func closing(brackets string, n int) string {
	if n == 0 {
		return brackets
	}
	return brackets[1:]
}

// SetKwargs gives the template variables in all renders. One that it never reads is an error.
func (c *Chat) SetKwargs(k Kwargs) error {
	if len(k) == 0 {
		return nil
	}
	err := k.Check()
	if err == nil {
		c.kwargs, err = k.values()
	}
	c.literals = map[string]string{}
	for name, v := range k {
		literal, _ := valueText(v, "none") // Check has seen it
		c.literals[name] = string(literal)
	}
	for _, name := range slices.Sorted(maps.Keys(c.kwargs)) {
		err = cmp.Or(err, c.checkReads(name))
	}
	if err != nil {
		return fmt.Errorf("chat_template_kwargs: %w", err)
	}
	c.version = fmt.Sprintf("%x", xxh3.Hash128([]byte(c.version+k.String())).Bytes())
	return nil
}

// Kwargs are the variables that all renders have, by name.
func (c *Chat) Kwargs() map[string]template.Value { return c.kwargs }

// Written are the templates by name, as a model directory has them: the variables of SetKwargs are defaults in those
// that read them. The lines before a template's own render nothing, and a caller may give other values.
func (c *Chat) Written() map[string]string {
	all := map[string]string{}
	for name, source := range c.config.Templates {
		var defaults strings.Builder
		for _, variable := range slices.Sorted(maps.Keys(c.kwargs)) {
			if c.sources[source].Reads(variable) {
				fmt.Fprintf(&defaults, "{%%- if %s is not defined %%}{%%- set %[1]s = %s %%}{%%- endif %%}\n", variable,
					c.literals[variable])
			}
		}
		all[name] = defaults.String() + source
	}
	return all
}

// checkReads refuses a variable that no template of the chat reads, or that the tokenizer has.
func (c *Chat) checkReads(name string) error {
	if _, ok := c.config.Tokens[name]; ok {
		return fmt.Errorf("%s is a special token, which the tokenizer has: leave it out", name)
	}
	if slices.Contains(c.reads, name) {
		return nil
	}
	reads := slices.DeleteFunc(slices.Clone(c.reads), func(v string) bool { return c.config.Tokens[v] != nil })
	what := "it reads " + strings.Join(reads, ", ")
	if len(reads) == 0 {
		what = "it reads none but those of every conversation"
	}
	return fmt.Errorf("the chat template never reads the variable %s, which would change nothing%s; %s", shown(name),
		cmp.Or(spelling.Question(name, reads), ": leave it out"), what)
}

// variables returns the variables of a render that are not the conversation's: special tokens, the run's variables, and
// the row's, which win.
func (c *Chat) variables(row *template.Dict) (map[string]template.Value, error) {
	if len(c.kwargs) == 0 && row == nil {
		return c.config.Tokens, nil
	}
	all := map[string]template.Value{}
	maps.Copy(all, c.config.Tokens)
	maps.Copy(all, c.kwargs)
	if row != nil {
		for i, key := range row.Keys() {
			name := string(key.(template.String))
			if err := cmp.Or(checkKwarg(name), c.checkReads(name)); err != nil && isEmpty(row.At(i)) {
				continue // a set may have more variables than a template, and tables have all of them in each row
			} else if err != nil {
				return nil, fmt.Errorf("chat_template_kwargs: %w", err)
			}
			all[name] = row.At(i)
		}
	}
	return all, nil
}
