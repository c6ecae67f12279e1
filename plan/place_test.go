package plan_test

import (
	"reflect"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// A place is named and not said by a bool for each part: a list of booleans would be a second author of places.
func TestPlacesAreNamed(t *testing.T) {
	var look func(path string, of reflect.Type)
	look = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Slice, reflect.Array:
			if of.Elem().Kind() == reflect.Bool {
				t.Errorf("%s is a list of booleans", path)
			}
			look(path+"[]", of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				look(path+"."+of.Field(i).Name, of.Field(i).Type)
			}
		}
	}
	look("Placement", reflect.TypeFor[plan.Placement]())
}

func TestPlaceAsText(t *testing.T) {
	for p := plan.Absent; p <= plan.Disk; p++ {
		text, err := p.MarshalText()
		var back plan.Place
		if err != nil || back.UnmarshalText(text) != nil || back != p {
			t.Errorf("%d becomes %s and then %v (%v)", p, text, back, err)
		}
	}
	var p plan.Place
	if err := p.UnmarshalText([]byte("attic")); err == nil {
		t.Error("an unknown place is read")
	}
}

// A block that no backward visit needs keeps nothing for one, on whichever devices its visits would be.
func TestUnvisitedBlocksKeepNothing(t *testing.T) {
	m := medium.model(t)
	const frozen = 5 // blocks, from the first one on
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Layer <= frozen {
			p.Layout = p.Layout.Frozen()
		}
	}
	p := newPlan(t, m, numerics(2, true))
	for _, at := range []plan.Place{plan.Device, plan.Host} {
		for _, dealt := range []bool{false, true} {
			place := moving(m, 2)
			place.Rings.Activations = 2
			for b := range place.Where.Activations {
				place.Where.Activations[b] = plan.Activations{Level: nn.KeepAll, Place: at}
			}
			if dealt { // forward to one, backward to another one
				place.Deal = make([]int, 2*len(m.Blocks)+1)
				for i := range len(m.Blocks) {
					place.Deal[i] = 1
				}
			}
			got := p.With(place)
			for b := range m.Blocks {
				want := nn.KeepInput
				if b >= frozen && (!dealt || at == plan.Host) {
					want = nn.KeepAll
				}
				if got.Keep(b) != want {
					t.Errorf("%v, dealt %t: block %d keeps %v, want %v", at, dealt, b, got.Keep(b), want)
				}
			}
		}
	}
}
