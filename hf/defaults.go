package hf

import (
	"fmt"
	"maps"
)

// Defaults has the values of a configuration class of transformers for keys that a config.json lacks or has as null.
type Defaults struct {
	Text string // the entry of the object "text_config"; "": there is no such object
	Auto bool   // unless "text_config" has a model_type of its own, which then names the entry

	absent map[string]value
	null   map[string]bool // keys of which a null means something else than a default: none, or false
}

// ParseDefaults reads a file of them: {"MODEL_TYPE": {"absent": {KEY: VALUE}, "null": [KEY], "text": "MODEL_TYPE"}}.
func ParseDefaults(doc []byte) (map[string]*Defaults, error) {
	all, err := decodeObject(doc)
	if err != nil {
		return nil, err
	}
	out := map[string]*Defaults{}
	for name, v := range all.values {
		of, isObject := v.v.(*object)
		if !isObject {
			return nil, fmt.Errorf("%s is no object", name)
		}
		r := &ConfigReader{path: name, obj: of, read: map[string]bool{}, err: new(error)}
		absent, _ := r.Object("absent")
		d := &Defaults{Text: r.StringOr("text", ""), Auto: r.Bool("auto"), null: map[string]bool{}}
		for _, key := range r.StringsOr("null", nil) {
			d.null[key] = true
		}
		if absent == nil || r.Err() != nil {
			return nil, fmt.Errorf("%s: the key absent has no object: %w", name, r.Err())
		}
		d.absent = absent.obj.values
		out[name] = d
	}
	return out, nil
}

// IsTrue reports whether an absent key means true.
func (d *Defaults) IsTrue(key string) bool { return d.absent[key].v == true }

// Without are the defaults but those of some keys.
func (d *Defaults) Without(keys ...string) *Defaults {
	out := *d
	out.absent = maps.Clone(d.absent)
	for _, key := range keys {
		delete(out.absent, key)
	}
	return &out
}
