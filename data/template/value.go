package template

import (
	"math"
	"unicode/utf8"
)

// Value is a value of a template: None, Bool, Int, Float, String, *List, *Dict, and values that only a render
// makes (tuples, views, iterators, macros, namespaces, undefined). The set is closed. A template cannot change a list
// or a dict, so values may be shared by renders that run at once, as long as Dict.Set is not called meanwhile.
type Value interface {
	typeName() string // Python's name of the type, for messages
}

// None is Python's None and JSON's null.
type None struct{}

// Bool is a truth value.
type Bool bool

// Int is an integer that fits into 64 bits. ParseJSON makes larger ones a type of their own, which is only printed.
type Int int64

// Float is a number with a fraction; it prints as Python's repr does: the shortest decimal that reads back.
type Float float64

// String is text in UTF-8. Positions and lengths count code points, as in Python.
type String string

// List is a sequence. Templates cannot change it.
type List struct{ items []Value }

// NewList makes a list of the items, which it keeps.
func NewList(items ...Value) *List { return &List{items} }

// Items are the list's items; the caller must not change them.
func (l *List) Items() []Value { return l.items }

type (
	bigInt string // the digits of an integer outside of int64
	tuple  struct{ items []Value }
	// iterator is a lazy sequence of Python's: true whatever it holds, without a length, and empty once it was read.
	iterator struct{ items []Value }
	// view is the value of range, and of a dict's keys, values and items: a length and items, which only a loop can
	// read.
	view struct {
		kind  string
		items []Value
	}
	namespace struct{ attrs *Dict }
	// undefined is the value of a missing name or attribute: false, empty, and an error once something is asked of it.
	undefined struct {
		of   Value  // what lacks the attribute; nil for a name
		name string // of the variable, attribute or element
		why  string // the whole message, where it is not one of the usual ones
	}
)

func (None) typeName() string       { return "NoneType" }
func (Bool) typeName() string       { return "bool" }
func (Int) typeName() string        { return "int" }
func (bigInt) typeName() string     { return "int" }
func (Float) typeName() string      { return "float" }
func (String) typeName() string     { return "str" }
func (*List) typeName() string      { return "list" }
func (*tuple) typeName() string     { return "tuple" }
func (*Dict) typeName() string      { return "dict" }
func (*iterator) typeName() string  { return "generator" }
func (v *view) typeName() string    { return v.kind }
func (*namespace) typeName() string { return "Namespace" }
func (*undefined) typeName() string { return "Undefined" }

// message says what is undefined, in Jinja's words.
func (u *undefined) message() string {
	switch {
	case u.why != "":
		return u.why
	case u.of == nil:
		return "'" + u.name + "' is undefined"
	}
	return "'" + objectName(u.of) + "' has no attribute '" + u.name + "'"
}

func objectName(v Value) string {
	if _, ok := v.(None); ok {
		return "None"
	}
	return v.typeName() + " object"
}

// take returns what is left of the iterator and empties it.
func (i *iterator) take() []Value {
	items := i.items
	i.items = nil
	return items
}

// Dict is a mapping that keeps the order in which keys were added. Keys are strings, numbers, truth values and None.
type Dict struct {
	keys, vals []Value
	index      map[any]int // nil while the dict is small
}

// smallDict is the size up to which a dict of strings is searched one by one: a message has two to five keys.
const smallDict = 8

// NewDict makes an empty dict with room for n keys.
func NewDict(n int) *Dict {
	return &Dict{keys: make([]Value, 0, n), vals: make([]Value, 0, n)}
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Get returns the value of a key that is a string.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.findString(key); i >= 0 {
		return d.vals[i], true
	}
	return nil, false
}

// Set gives a key that is a string its value. A new key goes last; one that is there keeps its place.
func (d *Dict) Set(key string, v Value) { d.set(String(key), key, v) }

// Keys are the keys in order; the caller must not change them. Those that ParseJSON made are Strings.
func (d *Dict) Keys() []Value { return d.keys }

// At is the i-th key's value.
func (d *Dict) At(i int) Value { return d.vals[i] }

func (d *Dict) findString(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if k, ok := k.(String); ok && string(k) == key {
			return i
		}
	}
	return -1
}

func (d *Dict) findHash(hash any) int {
	if key, ok := hash.(string); ok {
		return d.findString(key)
	}
	if d.index == nil {
		for i, k := range d.keys {
			if h, ok := hashOf(k); ok && h == hash {
				return i
			}
		}
		return -1
	}
	if i, ok := d.index[hash]; ok {
		return i
	}
	return -1
}

// indexed builds the map of a dict.
func (d *Dict) indexed() map[any]int {
	m := make(map[any]int, len(d.keys)+1)
	for i, k := range d.keys {
		if h, ok := hashOf(k); ok {
			m[h] = i
		}
	}
	return m
}

func (d *Dict) set(key Value, hash any, v Value) {
	if i := d.findHash(hash); i >= 0 {
		d.vals[i] = v
		return
	}
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
	if d.index != nil {
		d.index[hash] = len(d.keys) - 1
	} else if _, isString := hash.(string); len(d.keys) > smallDict || !isString {
		d.index = d.indexed()
	}
}

func (d *Dict) clone() *Dict {
	c := NewDict(len(d.keys))
	c.keys, c.vals = append(c.keys, d.keys...), append(c.vals, d.vals...)
	if d.index != nil {
		c.index = c.indexed()
	}
	return c
}

type noneHash struct{}

// hashOf is a comparable that is equal for values that are equal in Python: 1, 1.0 and True are one key. It is false
// for what cannot be a key.
func hashOf(v Value) (any, bool) {
	switch v := v.(type) {
	case String:
		return string(v), true
	case Bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case Int:
		return int64(v), true
	case Float:
		if f := float64(v); f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return int64(f), true
		}
		return v, true
	case None:
		return noneHash{}, true
	case bigInt:
		return v, true
	}
	return nil, false
}

// runeLen is the number of code points.
func runeLen(s string) int { return utf8.RuneCountInString(s) }

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
