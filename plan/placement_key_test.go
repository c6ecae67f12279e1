package plan

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/store"
)

// changes calls f with each number and flag below v changed, one at a time.
func changes(v reflect.Value, f func()) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			changes(v.Field(i), f)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			changes(v.Index(i), f)
		}
	case reflect.Bool:
		v.SetBool(!v.Bool())
		f()
		v.SetBool(!v.Bool())
	case reflect.Int:
		v.SetInt(v.Int() + 1)
		f()
		v.SetInt(v.Int() - 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() + 1)
		f()
		v.SetUint(v.Uint() - 1)
	default:
		panic("what is a placement's " + v.Type().String() + "?")
	}
}

// Placements that differ anywhere have other keys, and their copies have the same ones.
func TestPlacementKeys(t *testing.T) {
	p := Placement{Deal: make([]int, 2), HeadDeal: make([]int, 2), Drives: make([]int, 2), Where: Table{
		State: make([][store.Kinds]Place, 2), Weights: make([]Place, 2),
		Updates: make([]Place, 2), Inputs: make([]Place, 2), Activations: make([]Activations, 2),
		Caches: make([]Place, 2)}}
	table := reflect.ValueOf(p.Where)
	for i := range table.NumField() {
		if table.Field(i).Len() == 0 {
			t.Fatalf("the test has no %s", table.Type().Field(i).Name)
		}
	}
	seen := map[placementKey]bool{p.key(): true}
	n := 1
	changes(reflect.ValueOf(&p).Elem(), func() {
		n++
		seen[p.key()] = true
		if same := p.Clone(); same.key() != p.key() {
			t.Errorf("a copy of %+v has another key", p)
		}
	})
	if len(seen) != n || n < 40 {
		t.Errorf("%d keys of %d placements", len(seen), n)
	}
	one, other := p.Clone(), p.Clone()
	one.Where.Weights, other.Where.Updates = one.Where.Weights[:1], other.Where.Updates[:1]
	if one.key() == other.key() {
		t.Error("places of one list count as those of the next")
	}
}
