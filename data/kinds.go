package data

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// Each key that is read takes one kind of value. Null, and an empty list, are as a key that is not there. A text where
// a list or an object is wanted is read as JSON: columns of tables can hold values of one type only, so people write
// their calls and tools as text, and some programs do that twice. Anything else is an error that says what it is.

// kindOf names the kind of a value.
func kindOf(v template.Value) string {
	switch v := v.(type) {
	case nil, template.None:
		return "null"
	case template.Bool:
		return fmt.Sprint(bool(v))
	case template.String:
		return "a text"
	case *template.List:
		return "a list"
	case *template.Dict:
		return "an object"
	}
	return "a number"
}

// isAbsent reports whether a value is as a key that is not there.
func isAbsent(v template.Value) bool {
	switch v := v.(type) {
	case nil, template.None:
		return true
	case *template.List:
		return len(v.Items()) == 0
	}
	return false
}

// isEmpty reports whether a value says nothing: tables have nulls in lists and in objects.
func isEmpty(v template.Value) bool {
	switch v := v.(type) {
	case nil, template.None:
		return true
	case template.String:
		return blank(string(v))
	case *template.List:
		for _, item := range v.Items() {
			if !isEmpty(item) {
				return false
			}
		}
		return true
	case *template.Dict:
		for k := range v.Keys() {
			if !isEmpty(v.At(k)) {
				return false
			}
		}
		return true
	}
	return false
}

// saysNothing reports whether a value is empty, or the text of an empty one: "[]" of a column of texts.
func saysNothing(v template.Value) bool {
	inside, err := decoded(v)
	return isEmpty(v) || err == nil && isEmpty(inside)
}

// decoded is the value that a text has as JSON, twice encoded or once; other values are themselves. A blank text is
// null.
func decoded(v template.Value) (template.Value, error) {
	for range 2 {
		text, ok := v.(template.String)
		if !ok {
			return v, nil
		}
		if blank(string(text)) {
			return template.None{}, nil
		}
		parsed, err := template.ParseJSON([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("is not JSON (%w)", err)
		}
		v = parsed
	}
	return v, nil
}

// listOf returns the items of a list, or no items where it is absent. A struct of lists, as datasets had it for a
// list of structs, becomes such a list.
func listOf(v template.Value) ([]template.Value, error) {
	v, err := decoded(v)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil, template.None:
		return nil, nil
	case *template.List:
		return v.Items(), nil
	case *template.Dict:
		if items := transposed(v); items != nil {
			return items, nil
		}
	}
	return nil, fmt.Errorf("is %s, not a list", kindOf(v))
}

// objectOf returns an object, or nil where it is absent.
func objectOf(v template.Value) (*template.Dict, error) {
	v, err := decoded(v)
	if err != nil {
		return nil, err
	}
	if isAbsent(v) {
		return nil, nil
	}
	if d, ok := v.(*template.Dict); ok {
		return d, nil
	}
	return nil, fmt.Errorf("is %s, not an object", kindOf(v))
}

// transposed makes a list of objects of an object of lists of one length; nil if it is no such object.
func transposed(d *template.Dict) []template.Value {
	var all []template.Value
	for k, key := range d.Keys() {
		column, ok := d.At(k).(*template.List)
		if !ok || k > 0 && len(column.Items()) != len(all) {
			return nil
		}
		for i, v := range column.Items() {
			if k == 0 {
				all = append(all, template.NewDict(d.Len()))
			}
			all[i].(*template.Dict).Set(string(key.(template.String)), v)
		}
	}
	return all
}

// same reports whether two values are equal. The keys of objects may have any order.
func same(a, b template.Value) bool {
	switch x := a.(type) {
	case *template.List:
		y, ok := b.(*template.List)
		return ok && slices.EqualFunc(x.Items(), y.Items(), same)
	case *template.Dict:
		y, ok := b.(*template.Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		for k, key := range x.Keys() {
			v, has := y.Get(string(key.(template.String)))
			if !has || !same(x.At(k), v) {
				return false
			}
		}
		return true
	}
	return a == b
}

// textOf returns a value that is text.
func textOf(d *template.Dict, key string) (string, error) {
	v, ok := d.Get(key)
	if !ok {
		var has []string
		for _, k := range d.Keys() {
			name, _ := k.(template.String)
			has = append(has, string(name))
		}
		return "", fmt.Errorf("%q is missing: it has %s", key, someOf(has))
	}
	s, ok := v.(template.String)
	if !ok {
		return "", fmt.Errorf("%q is not a string: it is %s", key, kindOf(v))
	}
	return string(s), nil
}

// isCounted reads a mark: 0 or 1, as a number, a truth value, or the text of one.
func isCounted(v template.Value) (counts, ok bool) {
	switch v := v.(type) {
	case template.Bool:
		return bool(v), true
	case template.Int:
		return v == 1, v == 0 || v == 1
	case template.Float:
		return v == 1, v == 0 || v == 1
	case template.String:
		switch strings.ToLower(strings.TrimSpace(string(v))) {
		case "true", "1", "1.0":
			return true, true
		case "false", "0", "0.0":
			return false, true
		}
	}
	return false, false
}

// brief is a value for a message.
func brief(v template.Value) string {
	switch v := v.(type) {
	case template.String:
		return fmt.Sprintf("%.40q", string(v))
	case template.Int:
		return fmt.Sprint(int64(v))
	case template.Float:
		return fmt.Sprint(float64(v))
	}
	return kindOf(v)
}
